import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";

app.registerExtension({
  name: "LTXVAEMLX",
  setup() {
    api.addEventListener("b_preview_with_metadata", ({ detail }) => {
      const node = app.graph.getNodeById?.(detail.displayNodeId ?? detail.nodeId);
      if (node?.comfyClass === "LTXSaveVideoMLX") forgetFile(node);
    });
  },
  nodeCreated(node) {
    if (node.comfyClass !== "LTXSaveVideoMLX") return;
    fillInPrefix(node);
    const onExecuted = node.onExecuted;
    node.onExecuted = function (output) {
      onExecuted?.call(this, output);
      forgetPictures(this);
      setTimeout(() => forgetPictures(this), 1000); // the last picture may still be loading
    };
  },
});

// ComfyUI's page fills in %date:yyyy-MM-dd% and %node.widget% for its own nodes alone.
function fillInPrefix(node) {
  const fillIn = window.comfyAPI?.utils?.applyTextReplacements;
  if (!fillIn) return;
  const prefix = node.widgets.find(({ name }) => name === "filename_prefix");
  prefix.serializeValue = () => fillIn(app.graph, prefix.value);
}

const keyOf = ({ graph, id }) => (graph === app.graph.rootGraph ? `${id}` : `${graph?.id}:${id}`);

function removeWidget(node, name) {
  const index = node.widgets.findIndex((widget) => widget.name === name);
  if (index < 0) return;
  node.widgets[index].onRemove?.();
  node.widgets.splice(index, 1);
}

// The page takes pictures of the progress for videos where the node shows one of an earlier run.
function forgetFile(node) {
  if (!app.nodeOutputs[keyOf(node)]) return;
  delete app.nodeOutputs[keyOf(node)];
  node.images = node.previewMediaType = node.videoContainer = undefined;
  removeWidget(node, "video-preview");
}

// It shows the last picture as long as it has one, and not the file.
function forgetPictures(node) {
  const pictures = app.nodePreviewImages[keyOf(node)];
  if (pictures) pictures.length = 0;
  delete app.nodePreviewImages[keyOf(node)];
  if (!(node.imgs?.[0] instanceof HTMLVideoElement)) node.imgs = undefined;
  removeWidget(node, "$$canvas-image-preview");
  app.canvas.setDirty(true, true);
}
