# One image for every process of a federation; docker-compose.yml says which runs what.
# By digest: --build-arg BASE=python@sha256:...
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
# Where torch's wheels come from: CPU, or for instance https://download.pytorch.org/whl/cu130 for a GPU; empty: PyPI's.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python3 -m venv /venv
ENV PATH=/venv/bin:$PATH
WORKDIR /source
COPY pyproject.toml ./
# All versions as pyproject.toml pins them, without Ray: each client is on a machine of its own here.
# Of the extras what a deployment takes, and what makes it fast and draws its pictures.
RUN python -c "import tomllib; file = tomllib.load(open('pyproject.toml', 'rb')); project = file['project']; \
      extras = sum((project['optional-dependencies'][name] for name in ('deployment', 'kernels', 'pictures')), []); \
      wanted = [line.replace('[simulation]', '') for line in project['dependencies'] + extras if not line.startswith('ray')]; \
      open('/requirements', 'w').write('\n'.join(wanted)); \
      open('/constraints', 'w').write('\n'.join(file['tool']['uv']['constraint-dependencies']))" \
 && pip install --no-cache-dir ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -r /requirements -c /constraints
COPY README.md LICENSE ./
COPY fedpart fedpart
COPY simulations simulations
RUN pip install --no-cache-dir --no-deps .

# The parts of the image that are Python's, for scanners (CycloneDX); Debian's are in its package database.
FROM build AS parts
RUN python3 -m venv /tool && /tool/bin/pip install --no-cache-dir cyclonedx-bom==7.5.0 \
 && /tool/bin/cyclonedx-py environment --output-reproducible --output-file /sbom.cdx.json /venv/bin/python

FROM ${BASE}
RUN useradd --uid 10001 --no-create-home --home-dir /tmp fedpart && install -d -o fedpart -g fedpart -m 700 /state /runs
COPY --from=build /venv /venv
COPY --from=parts /sbom.cdx.json /sbom.cdx.json
ENV PATH=/venv/bin:$PATH HOME=/tmp FLWR_HOME=/tmp/flwr PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 \
    FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 \
    MALLOC_ARENA_MAX=1
USER fedpart
WORKDIR /tmp
CMD ["fedpart", "--help"]
