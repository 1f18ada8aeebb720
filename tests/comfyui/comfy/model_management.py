import threading

interrupt_processing = False
calls = []


class InterruptProcessingException(BaseException):
    pass


def interrupt_current_processing(value=True):
    global interrupt_processing
    interrupt_processing = value


def throw_exception_if_processing_interrupted():
    global interrupt_processing
    calls.append(("throw", threading.current_thread().name))
    if interrupt_processing:
        interrupt_processing = False
        raise InterruptProcessingException


def get_torch_device():
    return "device"


def get_total_memory(dev=None, torch_total_too=False):
    return 2**33


def get_free_memory(dev=None, torch_free_too=False):
    return 2**30


def free_memory(memory_required, device, keep_loaded=[], for_dynamic=False, pins_required=0, ram_required=0):  # noqa: B006
    calls.append(("free", threading.current_thread().name, memory_required, device))
    return []


def unload_all_models():
    free_memory(1e30, get_torch_device())
