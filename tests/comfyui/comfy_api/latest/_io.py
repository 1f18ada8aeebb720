from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Input:
    def __init__(
        self,
        id,
        display_name=None,
        optional=False,
        tooltip=None,
        lazy=None,
        extra_dict=None,
        raw_link=None,
        advanced=None,
    ):
        self.id, self.optional, self.tooltip = id, optional, tooltip


class WidgetInput(Input):
    def __init__(
        self,
        id,
        display_name=None,
        optional=False,
        tooltip=None,
        lazy=None,
        default=None,
        socketless=None,
        widget_type=None,
        force_input=None,
        extra_dict=None,
        raw_link=None,
        advanced=None,
    ):
        super().__init__(id, display_name, optional, tooltip)
        self.default = default


class Output:
    def __init__(self, id=None, display_name=None, tooltip=None, is_output_list=False):
        self.id, self.display_name, self.tooltip = id, display_name, tooltip
        self.is_output_list = is_output_list


class Int:
    class Input(WidgetInput):
        def __init__(
            self,
            id,
            display_name=None,
            optional=False,
            tooltip=None,
            lazy=None,
            default=None,
            min=None,
            max=None,
            step=None,
            control_after_generate=None,
            display_mode=None,
            socketless=None,
            force_input=None,
            extra_dict=None,
            raw_link=None,
            advanced=None,
        ):
            super().__init__(id, display_name, optional, tooltip, default=default)
            self.min, self.max, self.step = min, max, step


class Boolean:
    class Input(WidgetInput):
        def __init__(
            self,
            id,
            display_name=None,
            optional=False,
            tooltip=None,
            lazy=None,
            default=None,
            label_on=None,
            label_off=None,
            socketless=None,
            force_input=None,
            extra_dict=None,
            raw_link=None,
            advanced=None,
        ):
            super().__init__(id, display_name, optional, tooltip, default=default)


class Float:
    class Input(WidgetInput):
        def __init__(
            self,
            id,
            display_name=None,
            optional=False,
            tooltip=None,
            lazy=None,
            default=None,
            min=None,
            max=None,
            step=None,
            round=None,
            display_mode=None,
            gradient_stops=None,
            socketless=None,
            force_input=None,
            extra_dict=None,
            raw_link=None,
            advanced=None,
        ):
            super().__init__(id, display_name, optional, tooltip, default=default)
            self.min, self.max, self.step = min, max, step


class String:
    class Input(WidgetInput):
        def __init__(
            self,
            id,
            display_name=None,
            optional=False,
            tooltip=None,
            lazy=None,
            multiline=False,
            placeholder=None,
            default=None,
            dynamic_prompts=None,
            socketless=None,
            force_input=None,
            extra_dict=None,
            raw_link=None,
            advanced=None,
        ):
            super().__init__(id, display_name, optional, tooltip, default=default)


class Combo:
    class Input(WidgetInput):
        def __init__(
            self,
            id,
            options=None,
            display_name=None,
            optional=False,
            tooltip=None,
            lazy=None,
            default=None,
            control_after_generate=None,
            upload=None,
            image_folder=None,
            remote=None,
            socketless=None,
            extra_dict=None,
            raw_link=None,
            advanced=None,
        ):
            super().__init__(id, display_name, optional, tooltip, default=default)
            self.options = options


class MultiType:
    class Input(Input):
        def __init__(
            self,
            id,
            types,
            display_name=None,
            optional=False,
            tooltip=None,
            lazy=None,
            extra_dict=None,
            raw_link=None,
            advanced=None,
        ):
            super().__init__(id, display_name, optional, tooltip)
            self.types = types


class Image:
    Input, Output = Input, Output


class Latent:
    Input, Output = Input, Output


class Audio:
    Input, Output = Input, Output


class Video:
    Input, Output = Input, Output


class Model:
    Input, Output = Input, Output


class Vae:
    Input, Output = Input, Output


def Custom(io_type):
    return type(io_type, (), {"Input": Input, "Output": Output})


class FolderType(str, Enum):
    temp = "temp"
    output = "output"


class Hidden(str, Enum):
    unique_id = "UNIQUE_ID"
    prompt = "PROMPT"
    extra_pnginfo = "EXTRA_PNGINFO"


@dataclass
class Schema:
    node_id: str
    display_name: str = None
    category: str = "sd"
    inputs: list = field(default_factory=list)
    outputs: list = field(default_factory=list)
    hidden: list = field(default_factory=list)
    description: str = ""
    search_aliases: list = field(default_factory=list)
    is_input_list: bool = False
    is_output_node: bool = False


class ComfyNode(ABC):
    hidden = None

    @classmethod
    @abstractmethod
    def define_schema(cls): ...

    @classmethod
    @abstractmethod
    def execute(cls, **kwargs): ...


class NodeOutput:
    def __init__(self, *args: Any, ui=None, expand=None, block_execution=None):
        self.args, self.ui = args, ui
