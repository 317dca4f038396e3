"""ComfyUI custom node; needs the package vcattn in ComfyUI's Python. Copy or link this folder to custom_nodes/vcattn."""

from vcattn.integrations.comfyui import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]
