"""Annotations as tools export them: COCO, labelme, YOLO, VOC and Cityscapes, one module for each."""
