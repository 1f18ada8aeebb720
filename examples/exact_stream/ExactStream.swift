// The exact stream of the LTX video decoder with mlx-swift: exact_stream.py beside it, which is tested with vectors.
//
// `ExactStream(weights:)` takes the decoder's arrays by their published names, as apps hold them, and `decode` replaces
// a decode in chunks with a halo: the same latents, the same chunks for a sink, exact, and in memory that does not grow
// with the clip. docs/exact-stream.md describes the algorithm. Run as a program, it compares itself with the vectors:
// ExactStream CHECKPOINT VECTORS. With mlx-swift 0.31.6 on a CPU on Linux it agrees within 1e-6; not run on a Mac.
//
// Arrays of a stream are (frames, height, width, channels); nil stands for no frames.

import Foundation
import MLX

/// Frames after other frames, where each of them may be nil.
private func join(_ first: MLXArray?, _ second: MLXArray?) -> MLXArray? {
    guard let first, let second else { return first ?? second }
    return concatenated([first, second], axis: 0)
}

/// SiLU of the pixel norm, which divides each position by the root mean square of its channels.
private func activate(_ x: MLXArray?) -> MLXArray? {
    guard let x else { return nil }
    let normed = x * rsqrt((x * x).mean(axis: -1, keepDims: true) + 1e-8)
    return normed * sigmoid(normed)
}

/// Convolution of 3x3x3 in a stream. It keeps the last two frames that it saw.
private final class Conv {
    private let weight, bias: MLXArray
    private(set) var kept: MLXArray?

    init(_ weights: [String: MLXArray], _ name: String) throws {
        let stored = try array(weights, "\(name).conv.weight").asType(.float32)
        let isTorch = Array(stored.shape[1 ..< 4]) != [3, 3, 3]  // (O, I, T, H, W) instead of (O, T, H, W, I)
        weight = isTorch ? stored.transposed(0, 2, 3, 4, 1).contiguous() : stored
        bias = try array(weights, "\(name).conv.bias").asType(.float32)
    }

    /// The results for frames whose next frame has arrived.
    func push(_ x: MLXArray?) -> MLXArray? {
        guard let x else { return nil }
        let joined = concatenated([kept ?? x[0 ..< 1], x], axis: 0)  // the clip's first frame is repeated before it
        kept = joined[(joined.dim(0) - 2)...].contiguous()  // a copy, since a slice would keep all of it in memory
        return joined.dim(0) > 2 ? convolve(joined) : nil
    }

    /// The result for the last frame, which is repeated after it.
    func flush() -> MLXArray? {
        guard let last = kept else { return nil }
        kept = nil
        return convolve(concatenated([last, last[1...]], axis: 0))
    }

    /// n results of n + 2 frames, as the sum of three convolutions in 2D, padded with zeros in space.
    private func convolve(_ frames: MLXArray) -> MLXArray {
        let count = frames.dim(0) - 2
        let taps = (0 ..< 3).map { conv2d(frames[$0 ..< ($0 + count)], weight[0..., $0], padding: 1) }
        return taps[0] + taps[1] + taps[2] + bias
    }
}

private protocol Stage: AnyObject {
    var kept: [MLXArray] { get }
    func push(_ x: MLXArray) -> MLXArray?
    func flush(_ next: (MLXArray) throws -> Void) throws
}

/// x + conv2(activate(conv1(activate(x)))). It keeps x until the convolutions have results for these frames.
private final class ResidualBlock: Stage {
    private let conv1, conv2: Conv
    private var skip: MLXArray?
    var kept: [MLXArray] { [conv1.kept, conv2.kept, skip].compactMap { $0 } }

    init(_ weights: [String: MLXArray], _ name: String) throws {
        conv1 = try Conv(weights, "\(name).conv1")
        conv2 = try Conv(weights, "\(name).conv2")
    }

    func push(_ x: MLXArray) -> MLXArray? {
        skip = join(skip, x)
        return add(conv2.push(activate(conv1.push(activate(x)))))
    }

    func flush(_ next: (MLXArray) throws -> Void) throws {
        if let result = add(conv2.push(activate(conv1.flush()))) { try next(result) }
        if let result = add(conv2.flush()) { try next(result) }
    }

    private func add(_ result: MLXArray?) -> MLXArray? {
        guard let result, let x = skip else { return nil }
        let count = result.dim(0)
        skip = x.dim(0) > count ? x[count...].contiguous() : nil
        return result + x[0 ..< count]
    }
}

/// Convolution whose channels, in the order (channels, time, height, width), become `factors` positions.
private final class Upsampling: Stage {
    private let conv: Conv
    private let factors: [Int]
    private let isLast: Bool  // after an activation; its channels are patches of pixels: (color, width, height)
    private var dropsFirst: Bool  // of the first two frames of the clip, the first is not part of the result
    var kept: [MLXArray] { conv.kept.map { [$0] } ?? [] }

    init(_ weights: [String: MLXArray], _ name: String, _ factors: [Int], isLast: Bool = false) throws {
        conv = try Conv(weights, name)
        self.factors = factors
        self.isLast = isLast
        dropsFirst = factors[0] == 2
    }

    func push(_ x: MLXArray) -> MLXArray? { conv.push(isLast ? activate(x) : x).map(rearrange) }

    func flush(_ next: (MLXArray) throws -> Void) throws {
        if let result = conv.flush().map(rearrange) { try next(result) }
    }

    private func rearrange(_ x: MLXArray) -> MLXArray {
        let (count, height, width) = (x.dim(0), x.dim(1), x.dim(2))
        let (t, p, q) = (factors[0], factors[1], factors[2])
        let split = x.reshaped([count, height, width, x.dim(3) / (t * p * q), t, p, q])
        let ordered = split.transposed(axes: isLast ? [0, 4, 1, 6, 2, 5, 3] : [0, 4, 1, 5, 2, 6, 3])
        let result = ordered.reshaped([count * t, height * p, width * q, -1])
        defer { dropsFirst = false }
        return dropsFirst ? result[1...] : result
    }
}

struct MissingArray: Error, CustomStringConvertible {
    let description: String
}

private func array(_ weights: [String: MLXArray], _ names: String...) throws -> MLXArray {
    for name in names {
        if let array = weights[name] { return array }
    }
    throw MissingArray(description: "the weights have no \(names[0])")
}

/// Decode of one clip by LTX-2.3, or by LTX-2.5's convolutional decoder.
final class ExactStream {
    private let step = 2  // frames that a stage takes at a time; the result does not depend on it, and memory does
    private let mean, std: MLXArray
    private var stages: [Stage] = []

    init(weights published: [String: MLXArray]) throws {
        var weights: [String: MLXArray] = [:]
        for (name, value) in published where !name.hasPrefix("encoder.") && !name.hasPrefix("vae.encoder.") {
            weights[name.replacing(#/^(vae\.)?(vae_)?(decoder\.)?/#, with: "")] = value
        }
        let statistics = "per_channel_statistics"
        mean = try array(weights, "\(statistics).mean-of-means", "\(statistics).mean").asType(.float32)
        std = try array(weights, "\(statistics).std-of-means", "\(statistics).std").asType(.float32)
        stages.append(try Upsampling(weights, "conv_in", [1, 1, 1]))
        let upsampling = [1: [2, 2, 2], 3: [2, 2, 2], 5: [2, 1, 1], 7: [1, 2, 2]]
        for index in 0 ..< 9 {
            if let factors = upsampling[index] {
                stages.append(try Upsampling(weights, "up_blocks.\(index).conv", factors))
            }
            var name = "up_blocks.\(index).res_blocks.0"
            while weights["\(name).conv1.conv.weight"] != nil {
                stages.append(try ResidualBlock(weights, name))
                name = "up_blocks.\(index).res_blocks.\(Int(name.split(separator: ".").last!)! + 1)"
            }
        }
        stages.append(try Upsampling(weights, "conv_out", [1, 4, 4], isLast: true))
    }

    /// Call `sink` with the frames (1, 3, n, H, W), about in [-1, 1], of normalized latents (1, C, F', H', W'), in order.
    func decode(_ latents: MLXArray, sink: (MLXArray) throws -> Void) throws {
        for number in 0 ..< latents.dim(2) {
            try Task.checkCancellation()
            try push(latents[0, 0..., number], sink: sink)
        }
        try flush(sink: sink)
    }

    /// Take a normalized latent frame (C, h, w). The 15th makes the first 5 frames final, every later one 8 more.
    func push(_ latent: MLXArray, sink: (MLXArray) throws -> Void) throws {
        let x = latent.transposed(1, 2, 0).asType(.float32) * std + mean
        try run(0, x.expandedDimensions(axis: 0), sink)
    }

    /// End the clip: each stage ends after the one before it.
    func flush(sink: (MLXArray) throws -> Void) throws {
        for (index, stage) in stages.enumerated() {
            try stage.flush { try run(index + 1, $0, sink) }
        }
    }

    /// The frames that all stages keep, for tests.
    var kept: [[MLXArray]] { stages.map { $0.kept } }

    /// Run frames through the stages from `index` on, a few at a time, each evaluated before the next.
    private func run(_ index: Int, _ x: MLXArray, _ sink: (MLXArray) throws -> Void) throws {
        if index == stages.count {
            let frames = x.transposed(3, 0, 1, 2).expandedDimensions(axis: 0)
            eval(frames)
            return try sink(frames)
        }
        for start in stride(from: 0, to: x.dim(0), by: step) {
            let result = stages[index].push(x[start ..< min(start + step, x.dim(0))])
            eval(stages[index].kept + (result.map { [$0] } ?? []))
            if let result { try run(index + 1, result, sink) }
        }
    }
}

@main enum Compare {
    static func main() throws {
        let words = CommandLine.arguments
        guard words.count == 3 else { fatalError("usage: ExactStream CHECKPOINT.safetensors VECTORS.safetensors") }
        let vectors = try loadArrays(url: URL(fileURLWithPath: words[2]))
        let stream = try ExactStream(weights: loadArrays(url: URL(fileURLWithPath: words[1])))
        var parts: [MLXArray] = []
        try stream.decode(vectors["latents"]!) { parts.append($0) }
        let frames = concatenated(parts, axis: 2)[0].transposed(1, 2, 3, 0)
        let chosen = abs(frames[vectors["frame_numbers"]!] - vectors["frames"]!).max()
        let means = abs(frames.mean(axes: [1, 2]) - vectors["means"]!).max()
        print("\(frames.dim(0)) frames: the largest difference is \(max(chosen.item(Float.self), means.item(Float.self)))")
    }
}
