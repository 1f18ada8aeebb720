import { app } from "../../scripts/app.js";

app.registerExtension({
  name: "LTXVAEMLX",
  nodeCreated(node) {
    if (node.comfyClass !== "LTXSaveVideoMLX") return;
    fillInPrefix(node);
    showFileAtEnd(node);
  },
});

// ComfyUI's page fills in %date:yyyy-MM-dd% and %node.widget% for its own nodes alone.
function fillInPrefix(node) {
  const fillIn = window.comfyAPI?.utils?.applyTextReplacements;
  if (!fillIn) return;
  const prefix = node.widgets.find(({ name }) => name === "filename_prefix");
  prefix.serializeValue = () => fillIn(app.graph, prefix.value);
}

// The page shows the last picture of the progress as long as it has one, and not the file.
function showFileAtEnd(node) {
  const onExecuted = node.onExecuted;
  node.onExecuted = function (output) {
    onExecuted?.call(this, output);
    const key = this.graph === app.graph.rootGraph ? `${this.id}` : `${this.graph?.id}:${this.id}`;
    const pictures = app.nodePreviewImages[key];
    if (pictures) pictures.length = 0;
    delete app.nodePreviewImages[key];
    app.canvas.setDirty(true, true);
  };
}
