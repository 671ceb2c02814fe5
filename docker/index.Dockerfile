# syntax=docker/dockerfile:1
# Serves a wheel index, read-only, on port 8120. Mount the folder that `sm120 index publish` writes at /whl.
#
#   podman build -f docker/index.Dockerfile --build-arg BASE=python@sha256:… -t sm120-index .
#   podman run --read-only --publish 8120:8120 --volume /srv/whl:/whl:ro sm120-index
#
# BASE: any image with Python 3.10 or later as python3, by digest; docker/debian.Dockerfile makes one (--target python).
ARG BASE

FROM ${BASE}
COPY requirements/run.txt /opt/sm120.txt
RUN python3 -m venv /opt/sm120 && \
    /opt/sm120/bin/python -m pip install --no-cache-dir --disable-pip-version-check --require-hashes \
      --requirement /opt/sm120.txt
COPY . /opt/sm120-wheels
RUN /opt/sm120/bin/python -m pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation \
      /opt/sm120-wheels
LABEL org.opencontainers.image.title="sm120-index" \
      org.opencontainers.image.description="Serves a wheel index, read-only, on port 8120" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 65534:65534
WORKDIR /whl
EXPOSE 8120
STOPSIGNAL SIGTERM
ENTRYPOINT ["/opt/sm120/bin/sm120", "index", "serve", "--root", "/whl", "--host", "0.0.0.0"]
