// Decodes LTX latents with a folder of exported functions, with mlx-swift:
//
//     let decode = try ExportedDecode(folder: url)
//     try decode.frames(of: latents) { frames in show(frames) }  // (n, H, W, 3) in about [-1, 1], as they become final
//
// `python -m mlx_ltx_vae.export --backend metal` writes the folder, and docs/export.md describes it. As a command-line
// program: Decode FOLDER LATENTS.safetensors [--float] > frames.rgb
//
// Not compiled or run by the authors, who have no Mac; run.cpp beside it is the same program, and is tested.

import Cmlx
import Foundation
import MLX

struct ExportError: Error, CustomStringConvertible {
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

    func callAsFunction(_ inputs: [MLXArray]) -> [MLXArray] {
        let arguments = mlx_vector_array_new_data(inputs.map { $0.ctx }, inputs.count)
        var results = mlx_vector_array_new()
        defer {
            mlx_vector_array_free(arguments)
            mlx_vector_array_free(results)
        }
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
        guard current.compare(program.mlx, options: .numeric) != .orderedAscending else {
            throw ExportError(description: "decode.json is of MLX \(program.mlx), and this is \(current); update MLX.")
        }
        GPU.set(cacheLimit: program.plan.buffer_cache_bytes)
        let file = folder.appendingPathComponent("weights.safetensors")
        let (arrays, metadata) = try loadArraysAndMetadata(url: file)
        guard metadata["fingerprint"] == program.fingerprint else {
            throw ExportError(description: "\(file.path) has the weights of another checkpoint.")
        }
        weights = arrays
    }

    /// Call `show` with frames (n, H, W, 3) of latents (1, C, F', H', W') in order, in the thread that used MLX first.
    func frames(of latents: MLXArray, show: (MLXArray) -> Void) throws {
        let count = latents.ndim == 5 ? latents.dim(2) : 0
        guard count > 0, latents.shape == [1, program.latents[0], count, program.latents[1], program.latents[2]] else {
            throw ExportError(description: "latents of \(latents.shape); this export is for (1, C, frames, H, W) with "
                + "(C, H, W) = \(program.latents).")
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
            let outputs = function(call.function)(inputs)
            inputs.removeAll()  // so that their memory is free for the results
            eval(outputs)
            for (name, output) in zip(call.outputs, outputs) { arrays[name] = output }
            if let frames = arrays.removeValue(forKey: "frames") { show(frames[0]) }
        }
    }

    private func function(_ number: Int) -> ([MLXArray]) -> [MLXArray] {
        if let function = functions[number] { return function }
        let file = ImportedFile(folder.appendingPathComponent("\(number).mlxfn"))
        let function = compile { (inputs: [MLXArray]) in file(inputs) }
        functions[number] = function
        return function
    }
}
