# A CPU or CUDA image that serves config_hub/serve/smollm2-135m.yaml on port 8000; docs/deploy.md says how to use it.
FROM python:3.12-slim

# Where PyTorch's wheels come from, if not from the default index: --build-arg PIP_EXTRA_INDEX_URL=…
ARG PIP_EXTRA_INDEX_URL

RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 litspec
WORKDIR /app
COPY --chown=litspec pyproject.toml README.md LICENSE ./
COPY --chown=litspec config_hub ./config_hub
COPY --chown=litspec litspec ./litspec
RUN pip install --no-cache-dir -e . && mkdir /cache && chown litspec /cache

USER litspec
ENV LITSPEC_HOST=0.0.0.0 LITSPEC_PORT=8000 LITSPEC_CACHE=/cache PYTHONUNBUFFERED=1
RUN litspec download smollm2-135m-instruct

EXPOSE 8000
HEALTHCHECK --start-period=120s --interval=10s CMD \
    python -c "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"LITSPEC_PORT\"]}/health')"
CMD ["python", "litspec/serve.py", "--config", "config_hub/serve/smollm2-135m.yaml"]
