# CPU image. Not built yet: written from the Makefile, tried nowhere.
# docker build -t bertvision . && docker run --rm bertvision
FROM python:3.11-slim
RUN apt-get update && apt-get install --yes --no-install-recommends make git && rm -rf /var/lib/apt/lists/*
WORKDIR /bertvision
COPY . .
# The CPU build of the torch that constraints.txt pins; then what `make test` needs, in .venv.
RUN python -m venv .venv \
    && .venv/bin/pip install --no-cache-dir torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu \
    && make .venv/installed-dev
ENV PATH=/bertvision/.venv/bin:$PATH
CMD ["make", "test"]
