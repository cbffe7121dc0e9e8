# The page of app.py, and its HTTP interface, on port 7860 (docs/serving.md):
# docker build -f Dockerfile.app -t unet-app .
# docker run -p 7860:7860 -v "$PWD/runs/cells/model:/model:ro" unet-app
# With a model on the Hub instead of a folder: -e MODEL=me/cells. PyPI's torch brings CUDA along; with a GPU add --gpus all.
FROM python:3.11-slim
WORKDIR /app
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt gradio==6.31.0
COPY app.py ./
COPY runtime runtime
COPY unet unet
COPY tasks tasks
COPY data_utils data_utils
COPY inference inference
RUN useradd --uid 1000 --create-home page
USER 1000
ENV MODEL=/model GRADIO_SERVER_NAME=0.0.0.0 PYTHONUNBUFFERED=1
EXPOSE 7860
STOPSIGNAL SIGTERM
CMD ["python", "app.py", "--port", "7860"]
