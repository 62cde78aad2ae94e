# One image for both shapes: the service, and the sidecar next to an application.
#
#   docker build --tag sharecoord:0.1.0 .
#   docker build --build-arg BASE_IMAGE=<any image with Python 3.11 or newer and its venv module> .
#
# It runs as uid 10001 on a read-only root file system; the only folder it writes is the volume
# (the SQLite store). There is no HEALTHCHECK: an orchestrator's probes ask the coordinator itself,
# gRPC health on port 7070 and /healthz/live, /healthz/ready on port 7071 (see helm/sharecoord).

ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS build
WORKDIR /src
# For the extension in C of sdk/batches. Where there is no compiler to be had, the image does without
# it: records are then opened in Python, at five to twenty times the cost.
RUN headers=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h; \
    packages="gcc libc6-dev"; test -e "$headers" || packages="$packages python3-dev"; \
    { command -v gcc >/dev/null && test -e "$headers"; } \
    || { apt-get update && apt-get install --yes --no-install-recommends $packages; } \
    || echo "no compiler: the image will be without the extension of sharecoord-batches"
# Every package of a registry is the one whose hash stands in requirements.lock (`make lock`).
COPY requirements.lock ./
RUN python3 -m venv /opt/sharecoord \
    && /opt/sharecoord/bin/python -m pip install --no-cache-dir --require-hashes --requirement requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY sdk sdk
COPY sharecoord sharecoord
# Nothing in the image installs anything or imports setuptools, which Python 3.11 puts beside pip.
RUN /opt/sharecoord/bin/python -m pip install --no-cache-dir --no-index --no-deps --no-build-isolation \
        ./sdk ./sdk/batches . \
    && /opt/sharecoord/bin/python -m pip check \
    && /opt/sharecoord/bin/python -m pip uninstall --yes setuptools pip

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="sharecoord" \
      org.opencontainers.image.description="Share groups (KIP-932) for any Kafka cluster" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 sharecoord \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/sharecoord \
        --shell /usr/sbin/nologin sharecoord \
    && install --directory --owner 10001 --group 10001 --mode 0750 /var/lib/sharecoord
COPY --from=build /opt/sharecoord /opt/sharecoord
# The default store is a SQLite file below $XDG_STATE_HOME/sharecoord.
ENV PATH=/opt/sharecoord/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    XDG_STATE_HOME=/var/lib
VOLUME ["/var/lib/sharecoord"]
WORKDIR /var/lib/sharecoord
USER 10001:10001
EXPOSE 7070 7071
ENTRYPOINT ["sharecoord"]
CMD ["serve"]
