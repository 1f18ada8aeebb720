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


def unload_all_models():
    calls.append(("unload", threading.current_thread().name))


def soft_empty_cache(force=False):
    calls.append(("empty", threading.current_thread().name))
