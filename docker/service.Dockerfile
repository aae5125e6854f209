# The service: API, reconciler and command line, with Slurm's client commands. No torch.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
ARG PIP_OPTIONS=""
WORKDIR /src
COPY docker/certs/ /usr/local/share/ca-certificates/
COPY docker/wheelhouse/ /wheelhouse/
COPY docker/install.sh pyproject.toml constraints.txt ./
RUN sh install.sh dependencies service
COPY trainyard trainyard
COPY service service
COPY worker worker
COPY migrations migrations
COPY jobs_templates jobs_templates
COPY docs docs
RUN sh install.sh package

FROM ${BASE_IMAGE}
ARG SLURM_PACKAGES="slurm-client"
ARG TRAINYARD_UID=10001
ARG TRAINYARD_GID=10001
COPY docker/certs/ /usr/local/share/ca-certificates/
RUN update-ca-certificates >/dev/null 2>&1 \
    && apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends ${SLURM_PACKAGES} >/dev/null \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb
COPY docker/account.sh /tmp/
RUN sh /tmp/account.sh ${TRAINYARD_UID} ${TRAINYARD_GID}
COPY docker/slurm/slurm.conf /etc/slurm/
COPY docker/healthy.py /usr/local/lib/
COPY --from=build /opt/trainyard /opt/trainyard
# What is in docker/certs counts for webhooks and commands too, which would trust public authorities alone.
ENV PATH=/opt/trainyard/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
USER ${TRAINYARD_UID}:${TRAINYARD_GID}
WORKDIR /state
EXPOSE 8470
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s --retries=3 CMD ["python", "-ISE", "/usr/local/lib/healthy.py"]
CMD ["trainyard", "serve"]
