// ComfyUI's page fills in %date:yyyy-MM-dd% and %node.widget% for its own nodes alone.
import { app } from "../../scripts/app.js";

app.registerExtension({
  name: "LTXVAEMLX.FilenamePrefix",
  nodeCreated(node) {
    const fillIn = window.comfyAPI?.utils?.applyTextReplacements;
    if (node.comfyClass !== "LTXSaveVideoMLX" || !fillIn) return;
    const prefix = node.widgets.find(({ name }) => name === "filename_prefix");
    prefix.serializeValue = () => fillIn(app.graph, prefix.value);
  },
});
