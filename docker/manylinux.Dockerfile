# syntax=docker/dockerfile:1
# Portable wheels (glibc 2.28 and later): the manylinux_2_28 image, NUMA headers and ccache; with --target cuda12 also
# NVIDIA's CUDA 12 packages, which the Python package index does not hold whole. CUDA 13 needs no target: sm120 brings it
# from the index, locked by hash. What is in it stands in /opt/sm120-contents.txt.
#
#   podman build -f docker/manylinux.Dockerfile --target cuda13 --build-arg NUMACTL_VERSION=… -t sm120-manylinux .
#   podman build -f docker/manylinux.Dockerfile --target cuda12 --build-arg NUMACTL_VERSION=… -t sm120-manylinux-cu128 .
#
# The base is the one that cibuildwheel pins (manylinux_2_28_x86_64, 2026.10.26-1); for aarch64 give BASE the digest of
# manylinux_2_28_aarch64 from there.
ARG BASE=quay.io/pypa/manylinux_2_28_x86_64@sha256:e0adf18521ad35192df733a6c62d35df7801957d24e0470238aacecfab2188a3

FROM ${BASE} AS cuda13
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# The exact version, which `dnf list numactl-devel` in the base tells. No default for what was not looked up.
ARG NUMACTL_VERSION
# hadolint ignore=DL3041
RUN dnf --assumeyes --setopt=install_weak_deps=False install \
      "numactl-devel-${NUMACTL_VERSION:?give it: dnf list numactl-devel}" && \
    dnf clean all
ENV PATH=/opt/python/cp312-cp312/bin:$PATH SM120_CACHE_DIR=/cache SM120_BUILD_DIR=/work/build SM120_DIST_DIR=/work/dist
COPY requirements/run.txt /opt/sm120.txt
COPY recipes/locks/ccache.txt /opt/ccache.txt
RUN python3 -m pip install --no-cache-dir --disable-pip-version-check --require-hashes \
      --requirement /opt/sm120.txt --requirement /opt/ccache.txt
COPY . /opt/sm120-wheels
RUN python3 -m pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation \
      --editable /opt/sm120-wheels && \
    { rpm --query --all | sort; python3 --version; python3 -m pip list --format=freeze; } > /opt/sm120-contents.txt
LABEL org.opencontainers.image.title="sm120-manylinux" \
      org.opencontainers.image.description="Builds CUDA kernel wheels for SM120 on glibc 2.28; contents: /opt/sm120-contents.txt" \
      org.opencontainers.image.licenses="Apache-2.0"
VOLUME ["/cache", "/work"]
WORKDIR /work
ENTRYPOINT ["sm120"]
CMD ["doctor"]

FROM cuda13 AS cuda12
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# CUDA 12.9: --build-arg CUDA=12-9 --build-arg CUDA_VERSION=12.9.1-1
ARG CUDA=12-8
ARG CUDA_VERSION=12.8.1-1
# dnf checks NVIDIA's signature on every package, as the .repo file asks.
RUN dnf config-manager --add-repo \
      "https://developer.download.nvidia.com/compute/cuda/repos/rhel8/$(uname -m | sed s/aarch64/sbsa/)/cuda-rhel8.repo" && \
    dnf --assumeyes --setopt=install_weak_deps=False install "cuda-toolkit-${CUDA}-${CUDA_VERSION}" && \
    dnf clean all && rpm --query --all | sort >> /opt/sm120-contents.txt
ENV CUDA_HOME=/usr/local/cuda
