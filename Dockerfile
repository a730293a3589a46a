# CPU image. Not built yet: written from the Makefile, tried nowhere.
# docker build -t bertvision --build-arg TORCH_INDEX=… . && docker run --rm bertvision
# TORCH_INDEX: the address of torch's CPU wheels (its installation page has it); without it pip takes the far larger build with CUDA.
FROM python:3.11-slim
RUN apt-get update && apt-get install --yes --no-install-recommends make git && rm -rf /var/lib/apt/lists/*
ARG TORCH_INDEX=
WORKDIR /bertvision
COPY . .
# The torch that constraints.txt pins; then what `make test` needs, in .venv.
RUN python -m venv .venv \
    && .venv/bin/pip install --no-cache-dir torch==2.13.0 ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} \
    && make .venv/installed-dev
ENV PATH=/bertvision/.venv/bin:$PATH
CMD ["make", "test"]
