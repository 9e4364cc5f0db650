# docker build -t evorl . && docker run --rm -v "$PWD/runs:/app/runs" evorl python -m evorl.train agent=cemrl env=ant minutes=3
# docker build -t evorl:cuda --build-arg EXTRAS=gpu . && docker run --rm --gpus all -v "$PWD/runs:/app/runs" evorl:cuda python -m evorl.train ...
FROM python:3.11-slim
ARG EXTRAS=""
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir -c constraints.txt ".${EXTRAS:+[$EXTRAS]}" && rm -rf /src
RUN useradd --create-home evorl && mkdir /app && chown evorl /app
USER evorl
WORKDIR /app
CMD ["python", "-m", "evorl"]
