texts = []


class PromptServer:
    instance: "PromptServer"

    def send_progress_text(self, text, node_id, sid=None):
        texts.append((node_id, text))


PromptServer.instance = PromptServer()
