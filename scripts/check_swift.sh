#!/bin/sh
# Type-check the examples in Swift against mlx-swift, on Linux, without building MLX:
#
#     sh scripts/check_swift.sh MLX_SWIFT NUMERICS
#
# The arguments are checkouts of ml-explore/mlx-swift and apple/swift-numerics. SWIFT is the compiler, by default
# swiftc. What needs Metal is left out of mlx-swift, as its own package leaves it out on Linux.
set -eu
mlx=$1
numerics=$2
swift=${SWIFT:-swiftc}
root=$(cd "$(dirname "$0")/.." && pwd)
modules=$(mktemp -d)
trap 'rm -rf "$modules"' EXIT

compile() {
    "$swift" "$@" -parse-as-library -I "$modules" -Xcc -I"$numerics/Sources/_NumericsShims/include" \
        -Xcc -fmodule-map-file="$mlx/Source/Cmlx/include/module.modulemap" -Xcc -I"$mlx/Source/Cmlx/include"
}

emit() {
    name=$1
    shift
    compile -emit-module -module-name "$name" -package-name mlx -swift-version 5 -suppress-warnings "$@" \
        -o "$modules/$name.swiftmodule"
}

emit RealModule "$numerics"/Sources/RealModule/*.swift
emit ComplexModule "$numerics"/Sources/ComplexModule/*.swift
emit IntegerUtilities "$numerics"/Sources/IntegerUtilities/*.swift
emit Numerics "$numerics"/Sources/Numerics/*.swift
emit MLX $(find "$mlx/Source/MLX" -name "*.swift" ! -name "*+Metal.swift" ! -name "*+CUDA.swift")
for version in 5 6; do
    for program in "$root"/examples/*/*.swift; do
        compile -typecheck -swift-version "$version" "$program"
    done
done
