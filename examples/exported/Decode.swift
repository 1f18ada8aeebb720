// Decodes LTX latents as run.py does, with mlx-swift: Decode FOLDER LATENTS.safetensors [--float] > frames.rgb
//
// `mlx_ltx_vae export --backend metal` writes the folder, and docs/export.md describes it.
// Not compiled or run by the authors, who have no Mac; run.cpp beside it is the same program, and is tested.

import Cmlx
import Foundation
import MLX

struct ExportError: Error {
    let description: String
}

struct Program: Decodable {
    struct Call: Decodable {
        let function: Int
        let inputs, outputs, unused: [String]
    }
    struct Plan: Decodable {
        let buffer_cache_bytes: Int
    }
    let mlx, fingerprint: String
    let latents: [Int]  // channels, rows and columns
    let plan: Plan
    let calls: [Call]
    let steps, ends: [[Int]]
}

final class ImportedFile {  // mlx-swift's ImportedFunction takes no array of arguments
    private let function: mlx_imported_function

    init(_ url: URL) { function = mlx_imported_function_new(url.path) }
    deinit { mlx_imported_function_free(function) }

    func call(_ inputs: [MLXArray]) -> [MLXArray] {
        let arguments = mlx_vector_array_new_data(inputs.map { $0.ctx }, inputs.count)
        var results = mlx_vector_array_new()
        defer { mlx_vector_array_free(arguments) }
        defer { mlx_vector_array_free(results) }
        mlx_imported_function_apply(&results, function, arguments)
        return (0 ..< mlx_vector_array_size(results)).map { index in
            var result = mlx_array_new()
            mlx_vector_array_get(&result, results, index)
            return MLXArray(result)
        }
    }
}

final class ExportedDecode {
    let program: Program
    private let folder: URL
    private let weights: [String: MLXArray]
    private var functions: [Int: ([MLXArray]) -> [MLXArray]] = [:]

    init(folder: URL) throws {
        setenv("MLX_CONV_WINOGRAD_TILE_BATCH", "1", 0)  // scratch memory of a frame instead of all
        self.folder = folder
        let json = try Data(contentsOf: folder.appendingPathComponent("decode.json"))
        program = try JSONDecoder().decode(Program.self, from: json)
        var version = mlx_string_new()
        defer { mlx_string_free(version) }
        mlx_version(&version)
        let current = String(cString: mlx_string_data(version))
        if current.compare(program.mlx, options: .numeric) == .orderedAscending {
            throw ExportError(description: "decode.json is of MLX \(program.mlx), and this is \(current); update MLX.")
        }
        GPU.set(cacheLimit: program.plan.buffer_cache_bytes)
        let metadata: [String: String]
        (weights, metadata) = try loadArraysAndMetadata(url: folder.appendingPathComponent("weights.safetensors"))
        if metadata["fingerprint"] != program.fingerprint {
            throw ExportError(description: "weights.safetensors has the weights of another checkpoint.")
        }
    }

    /// Call `show` with the frames (n, H, W, 3) of latents (1, C, F', H', W'), in the thread that used MLX first.
    func frames(of latents: MLXArray, show: (MLXArray) -> Void) throws {
        let (size, count) = (program.latents, latents.ndim == 5 ? latents.dim(2) : 0)
        if count < 1 || latents.shape != [1, size[0], count, size[1], size[2]] {
            throw ExportError(description: "latents of \(latents.shape); the export is for C, H, W = \(size).")
        }
        var arrays = weights
        for index in 0 ..< count {
            arrays["latents"] = latents[0..., 0..., index ..< (index + 1)].asType(.float32)
            arrays["index"] = MLXArray(UInt32(index))
            run(program.steps[min(index, program.steps.count - 1)], &arrays, show)
        }
        run(program.ends[min(count, program.ends.count) - 1], &arrays, show)
    }

    private func run(_ numbers: [Int], _ arrays: inout [String: MLXArray], _ show: (MLXArray) -> Void) {
        for call in numbers.map({ program.calls[$0] }) {
            var inputs = call.inputs.map { arrays[$0]! }
            for name in call.unused { arrays[name] = nil }
            let file = folder.appendingPathComponent("\(call.function).mlxfn")
            let function = functions[call.function] ?? compile(ImportedFile(file).call)
            functions[call.function] = function
            let outputs = function(inputs)
            inputs.removeAll()  // so that their memory is free for the results
            eval(outputs)
            for (name, output) in zip(call.outputs, outputs) { arrays[name] = output }
            if let frames = arrays.removeValue(forKey: "frames") { show(frames[0]) }
        }
    }
}

@main enum Decode {
    static func main() throws {
        let words = CommandLine.arguments
        let latents = try loadArrays(url: URL(fileURLWithPath: words[2]))["latents"]!
        let decode = try ExportedDecode(folder: URL(fileURLWithPath: words[1]))
        try decode.frames(of: latents.ndim == 4 ? latents.expandedDimensions(axis: 0) : latents) { frames in
            let pixels = frames.asType(.float32)
            let levels = clip(round((pixels + 1) * 127.5), min: 0, max: 255).asType(.uint8)
            FileHandle.standardOutput.write((words.contains("--float") ? pixels : levels).asData(access: .copy).data)
        }
    }
}
