# docker build -t qrun . && docker run --rm -v .:/m qrun check /m
FROM python:3.13-slim AS build
COPY . /qrun
RUN pip wheel --no-cache-dir --wheel-dir /wheels /qrun

FROM python:3.13-slim
LABEL org.opencontainers.image.title="qrun" org.opencontainers.image.version="0.1.0" org.opencontainers.image.licenses="Apache-2.0"
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels pip install --no-cache-dir --no-index --find-links /wheels onnx-qrun
RUN useradd --create-home --uid 1000 qrun
USER qrun
WORKDIR /m
ENTRYPOINT ["qrun"]
CMD ["--help"]
