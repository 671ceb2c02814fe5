# syntax=docker/dockerfile:1
# Builds wheels on Debian 11 (glibc 2.31), so that they install on any system from that glibc on. Everything in it is
# pinned: the base by digest, Debian's packages by the date of a snapshot, Python's sources by sha256. CUDA 13, CMake and
# torch are not in the image: sm120 brings them, locked by hash, into the cache that is mounted at /cache. What is in it
# stands in /opt/sm120-contents.txt.
#
#   podman build -f docker/debian.Dockerfile --build-arg BASE=debian@sha256:… -t sm120-debian .
#   podman build -f docker/debian.Dockerfile --build-arg BASE=debian@sha256:… --target python -t sm120-python .
#
# The second has Python and nothing to build with: a base for docker/index.Dockerfile.
#
# No default for BASE: take the digest of debian:bullseye-slim from a registry you trust, or make a base yourself
# (docs/how-to/build-in-an-image.md).
ARG BASE

FROM ${BASE} AS system
# Debian and its security updates as they were on that day; packages are checked against Debian's signatures.
ARG DEBIAN_MIRROR=http://snapshot.debian.org/archive/debian/20260901T000000Z
ARG DEBIAN_SECURITY_MIRROR=http://snapshot.debian.org/archive/debian-security/20260901T000000Z
ENV DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN printf 'deb [check-valid-until=no] %s main\n' \
      "${DEBIAN_MIRROR} bullseye" "${DEBIAN_SECURITY_MIRROR} bullseye-security" > /etc/apt/sources.list && \
    apt-get -qq update && apt-get -qq upgrade --yes && apt-get -qq install --yes --no-install-recommends \
      ca-certificates libbz2-1.0 libffi7 liblzma5 libsqlite3-0 libssl1.1 zlib1g && \
    apt-get clean && rm -rf /var/lib/apt/lists/*

# Debian 11 has Python 3.9; sm120 needs 3.10. Debian 12 keeps the sources of 3.11, which anyone can compile here.
FROM system AS compiled
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get -qq update && apt-get -qq install --yes --no-install-recommends \
      gcc make pkg-config curl zlib1g-dev libssl-dev libffi-dev libbz2-dev liblzma-dev libsqlite3-dev && \
    apt-get clean && rm -rf /var/lib/apt/lists/*
ARG PYTHON_SOURCE=http://snapshot.debian.org/archive/debian/20260901T000000Z/pool/main/p/python3.11/python3.11_3.11.2.orig.tar.gz
# Compiles at a time; empty: one for each core.
ARG JOBS=
ARG PYTHON_SHA256=2411c74bda5bbcfcddaf4531f66d1adc73f247f529aee981b029513aefdbf849
WORKDIR /usr/src/python
RUN curl --fail --silent --show-error --location --output ../python.tar.gz "${PYTHON_SOURCE}" && \
    echo "${PYTHON_SHA256}  ../python.tar.gz" | sha256sum --check --quiet && \
    tar --extract --gzip --strip-components=1 --file ../python.tar.gz && \
    ./configure --quiet --prefix=/opt/python --without-static-libpython --with-ensurepip=install --disable-test-modules && \
    make --silent "--jobs=${JOBS:-$(nproc)}" && make --silent install
RUN find /opt/python -name '*.so' -exec strip --strip-unneeded {} + && strip --strip-unneeded /opt/python/bin/python3.11

FROM system AS python
COPY --from=compiled /opt/python /opt/python
ENV PATH=/opt/python/bin:$PATH

FROM python
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get -qq update && apt-get -qq install --yes --no-install-recommends g++ git libnuma-dev && \
    apt-get clean && rm -rf /var/lib/apt/lists/*
ENV SM120_CACHE_DIR=/cache SM120_BUILD_DIR=/work/build SM120_DIST_DIR=/work/dist
# The project itself, as it is in the checkout that the image is made from; its dependencies are locked by hash.
COPY requirements/run.txt /opt/sm120.txt
COPY recipes/locks/ccache.txt /opt/ccache.txt
RUN python3 -m pip install --no-cache-dir --disable-pip-version-check --require-hashes \
      --requirement /opt/sm120.txt --requirement /opt/ccache.txt
COPY . /opt/sm120-wheels
RUN python3 -m pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation \
      --editable /opt/sm120-wheels && \
    { dpkg-query --show; python3 --version; python3 -m pip list --format=freeze; } > /opt/sm120-contents.txt
ARG BASE
LABEL org.opencontainers.image.title="sm120-debian" \
      org.opencontainers.image.description="Builds CUDA kernel wheels for SM120 on glibc 2.31; contents: /opt/sm120-contents.txt" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE}"
VOLUME ["/cache", "/work"]
WORKDIR /work
ENTRYPOINT ["sm120"]
CMD ["doctor"]
