# syntax=docker/dockerfile:1
# Builds wheels on Debian 11 (glibc 2.31), so that they install on any system from that glibc on. Everything in it is
# pinned: the base by digest, Debian's packages by the date of a snapshot, Python's sources by sha256. CUDA 13, CMake and
# torch are not in the image: sm120 brings them, locked by hash, into the cache that is mounted at /cache.
#
#   podman build -f docker/debian.Dockerfile --build-arg BASE=debian@sha256:… -t sm120-debian .
#
# No default for BASE: take the digest of debian:bullseye-slim from a registry you trust, or make a base yourself
# (docs/how-to/build-in-an-image.md).
ARG BASE

FROM ${BASE} AS system
# Debian as it was on that day; packages are checked against its signatures.
ARG DEBIAN_MIRROR=http://snapshot.debian.org/archive/debian/20260901T000000Z
ENV DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN echo "deb [check-valid-until=no] ${DEBIAN_MIRROR} bullseye main" > /etc/apt/sources.list

# Debian 11 has Python 3.9; sm120 needs 3.10. Debian 12 keeps the sources of 3.11, which anyone can compile here.
FROM system AS python
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get -qq update && apt-get -qq install --yes --no-install-recommends \
      gcc make pkg-config ca-certificates curl zlib1g-dev libssl-dev libffi-dev libbz2-dev liblzma-dev libsqlite3-dev && \
    rm -rf /var/lib/apt/lists/*
ARG PYTHON_SOURCE=http://snapshot.debian.org/archive/debian/20260901T000000Z/pool/main/p/python3.11/python3.11_3.11.2.orig.tar.gz
ARG PYTHON_SHA256=2411c74bda5bbcfcddaf4531f66d1adc73f247f529aee981b029513aefdbf849
WORKDIR /usr/src/python
RUN curl --fail --silent --show-error --location --output ../python.tar.gz "${PYTHON_SOURCE}" && \
    echo "${PYTHON_SHA256}  ../python.tar.gz" | sha256sum --check --quiet && \
    tar --extract --gzip --strip-components=1 --file ../python.tar.gz && \
    ./configure --quiet --prefix=/opt/python --without-static-libpython --with-ensurepip=install \
      --disable-test-modules OPT="-O1 -DNDEBUG" && \
    make --silent "--jobs=$(nproc)" && make --silent install

FROM system
# hadolint ignore=DL3008
RUN apt-get -qq update && apt-get -qq install --yes --no-install-recommends \
      g++ git ca-certificates ccache libnuma-dev libbz2-1.0 libffi7 liblzma5 libsqlite3-0 libssl1.1 zlib1g && \
    rm -rf /var/lib/apt/lists/*
COPY --from=python /opt/python /opt/python
ENV PATH=/opt/python/bin:$PATH SM120_CACHE_DIR=/cache SM120_BUILD_DIR=/work/build SM120_DIST_DIR=/work/dist
# The project itself, as it is in the checkout that the image is made from; its dependencies are locked by hash.
COPY requirements/run.txt /opt/sm120.txt
RUN python3 -m pip install --no-cache-dir --disable-pip-version-check --require-hashes --requirement /opt/sm120.txt
COPY . /opt/sm120-wheels
RUN python3 -m pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation \
      --editable /opt/sm120-wheels
VOLUME ["/cache", "/work"]
WORKDIR /work
ENTRYPOINT ["sm120"]
CMD ["doctor"]
