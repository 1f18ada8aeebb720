// Decodes LTX latents as run.py does, with mlx-swift: Decode FOLDER LATENTS.safetensors [--float] > frames.rgb
//
// `mlx_ltx_vae export --backend metal --for mlx-swift` writes the folder, and docs/export.md describes it.
// Compiled with mlx-swift 0.31.6 in Swift 6.0, and run on a CPU on Linux, where it gives the frames of `decode`; not run on
// a Mac by the authors.

import Cmlx
import Foundation
import MLX

struct ExportError: Error, CustomStringConvertible {
    let description: String
}

/// The first line of an error of MLX.
func message(_ error: Error) -> String {
    guard case MLXError.caught(let text) = error else { return "\(error)" }
    return String(text.prefix { $0 != "\n" })
}

struct Program: Decodable {
    struct Call: Decodable {
        let function: Int
        let inputs, outputs, unused: [String]
    }
    struct Plan: Decodable {
        let buffer_cache_bytes: Int
    }
    let format, function_format: Int
    let fingerprint, backend: String
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
        guard mlx_imported_function_apply(&results, function, arguments) == 0 else { return [] }
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
        setenv("MLX_CONV_WINOGRAD_TILE_BATCH", "1", 0)  // since MLX 0.32.2, scratch memory of a frame instead of all
        self.folder = folder
        do {
            let json = try Data(contentsOf: folder.appendingPathComponent("decode.json"))
            program = try JSONDecoder().decode(Program.self, from: json)
        } catch {
            throw ExportError(description: "\(folder.path) has no decode.json, or a damaged one; export it again.")
        }
        if program.format != 1 || program.latents.count != 3 || program.steps.isEmpty || program.ends.isEmpty {
            throw ExportError(description: "\(folder.path)/decode.json is not of format 1; export it again.")
        }
        var version = mlx_string_new()
        defer { mlx_string_free(version) }
        mlx_version(&version)
        let current = String(cString: mlx_string_data(version))
        let format = current.compare("0.32.1", options: .numeric) == .orderedAscending ? 1 : 2
        if program.function_format != format {
            let formats = "functions of format \(program.function_format), and MLX \(current) reads format \(format)"
            throw ExportError(description: "\(folder.path) has \(formats); see --for of export.")
        }
        if program.plan.buffer_cache_bytes > 0 { Memory.cacheLimit = program.plan.buffer_cache_bytes }
        var url = folder.appendingPathComponent("weights.safetensors")  // or in the folder of exports of several sizes
        if !FileManager.default.fileExists(atPath: url.path) {
            url = folder.deletingLastPathComponent().appendingPathComponent("weights.safetensors")
        }
        let metadata: [String: String]
        do {
            (weights, metadata) = try withError { try loadArraysAndMetadata(url: url) }
        } catch {
            throw ExportError(description: "\(url.path) cannot be read: \(message(error))")
        }
        if metadata["fingerprint"] != program.fingerprint {
            throw ExportError(description: "\(url.path) has the weights of another checkpoint.")
        }
    }

    /// Call `show` with the frames (n, H, W, 3) of latents (1, C, F', H', W'), in the thread that used MLX first.
    func frames(of latents: MLXArray, show: (MLXArray) throws -> Void) throws {
        let (size, count) = (program.latents, latents.ndim == 5 ? latents.dim(2) : 0)
        if count < 1 || latents.shape != [1, size[0], count, size[1], size[2]] {
            throw ExportError(description: "latents of \(latents.shape); the export is for C, H, W = \(size).")
        }
        var arrays = weights
        for index in 0 ..< count {
            arrays["latents"] = latents[0..., 0..., index ..< (index + 1)].asType(.float32)
            arrays["index"] = MLXArray(UInt32(index))
            try run(program.steps[min(index, program.steps.count - 1)], &arrays, show)
        }
        try run(program.ends[min(count, program.ends.count) - 1], &arrays, show)
    }

    private func run(_ numbers: [Int], _ arrays: inout [String: MLXArray], _ show: (MLXArray) throws -> Void) throws {
        for number in numbers {
            guard program.calls.indices.contains(number) else { throw damage("there is no call \(number)") }
            let call = program.calls[number]
            var inputs: [MLXArray] = []
            for name in call.inputs {
                guard let array = arrays[name] else { throw damage("no call makes \(name)") }
                inputs.append(array)
            }
            for name in call.unused { arrays[name] = nil }
            let function = try self.function(call.function)
            let outputs: [MLXArray]
            do {
                outputs = try withError { error in  // outside of it, an error of MLX ends the app
                    let outputs = function(inputs)
                    try error.check()
                    inputs.removeAll()  // so that their memory is free for the results
                    eval(outputs)
                    return outputs
                }
            } catch {
                throw ExportError(description: "\(folder.path)/\(call.function).mlxfn failed: \(message(error))")
            }
            guard outputs.count == call.outputs.count else { throw damage("a function has other results") }
            for (name, output) in zip(call.outputs, outputs) { arrays[name] = output }
            if let frames = arrays.removeValue(forKey: "frames") { try show(frames[0]) }
        }
    }

    private func function(_ number: Int) throws -> ([MLXArray]) -> [MLXArray] {
        if let function = functions[number] { return function }
        let url = folder.appendingPathComponent("\(number).mlxfn")
        do {
            let function = compile(try withError { ImportedFile(url) }.call)
            functions[number] = function
            return function
        } catch {
            let isOfDevice = message(error).contains("stream")
            let reason = isOfDevice ? "is for \(program.backend), which this MLX lacks" : "is missing or damaged"
            throw ExportError(description: "\(url.path) \(reason); export the folder again (\(message(error))).")
        }
    }

    private func damage(_ reason: String) -> ExportError {
        ExportError(description: "\(folder.path)/decode.json is damaged: \(reason); export the folder again.")
    }
}

@main enum Decode {
    static func main() {
        let words = CommandLine.arguments
        guard words.count >= 3 else { return fail("usage: Decode FOLDER LATENTS.safetensors [--float] > frames.rgb") }
        do {
            let tensors = try withError { try loadArrays(url: URL(fileURLWithPath: words[2])) }
            guard let latents = tensors["latents"] else { return fail("error: \(words[2]) has no tensor latents.") }
            let decode = try ExportedDecode(folder: URL(fileURLWithPath: words[1]))
            try decode.frames(of: latents.ndim == 4 ? latents.expandedDimensions(axis: 0) : latents) { frames in
                let pixels = frames.asType(.float32)
                let levels = clip(round((pixels + 1) * 127.5), min: 0, max: 255).asType(.uint8)
                let output = words.contains("--float") ? pixels : levels
                FileHandle.standardOutput.write(output.asData(access: .copy).data)
            }
        } catch {
            fail("error: \(error)")
        }
    }

    private static func fail(_ message: String) {
        FileHandle.standardError.write(Data((message + "\n").utf8))
        exit(1)
    }
}
