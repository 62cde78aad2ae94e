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
COPY constraints.txt ./
RUN python3 -m venv /opt/sharecoord \
    && /opt/sharecoord/bin/python -m pip install --no-cache-dir --constraint constraints.txt --upgrade pip
COPY pyproject.toml README.md LICENSE ./
COPY sdk sdk
COPY sharecoord sharecoord
# sdk/batches has an extension in C, which an image without a compiler does without.
# Nothing in the image installs anything or imports setuptools, which Python 3.11 puts beside pip.
RUN /opt/sharecoord/bin/python -m pip install --no-cache-dir \
        --constraint constraints.txt --build-constraint constraints.txt \
        ./sdk ./sdk/batches '.[postgres,mysql,otel,events]' \
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
