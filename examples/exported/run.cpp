// Decodes LTX latents as run.py does, with a folder of exported functions: run FOLDER LATENTS.safetensors [--float]
//
// docs/export.md describes the folder. Only MLX is needed. With the headers and the library of its Python wheel:
//   MLX=$(python -c "import mlx.core, pathlib; print(pathlib.Path(mlx.core.__file__).parent)")
//   g++ -std=c++20 -O2 run.cpp -I$MLX/include -L$MLX/lib -lmlx -Wl,-rpath,$MLX/lib -Wl,--allow-shlib-undefined -o run

#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <tuple>

#include "mlx/mlx.h"
#include "mlx/version.h"

namespace mx = mlx::core;
using Function = std::function<std::vector<mx::array>(const std::vector<mx::array>&)>;

struct Json {
    std::string text;  // of a string or a number
    std::vector<Json> items;
    std::map<std::string, Json> entries;
    static void check(bool is_whole, const std::string& what) {
        if (!is_whole) throw std::runtime_error("decode.json is damaged: " + what + "; export the folder again.");
    }
    const Json& operator[](const std::string& name) const {
        check(entries.count(name), "it has no " + name);
        return entries.at(name);
    }
    const Json& at(size_t index) const {
        check(index < items.size(), "a list ends before " + std::to_string(index));
        return items[index];
    }
    const Json& at_most(size_t index) const { return at(std::min(index, items.size() - (items.size() > 0))); }
    long long number() const {
        check(!text.empty() && text.find_first_not_of("0123456789") == text.npos, "'" + text + "' is no number");
        return std::stoll(text);
    }
    static Json parse(std::istream& in) {
        Json value;
        char c = (in >> std::ws).get();
        if (c == '"') {
            while (in && (c = in.get()) != '"') value.text += c;
        } else if (c == '[' || c == '{') {
            while (in && (in >> std::ws).peek() != ']' && in.peek() != '}') {
                auto item = parse(in);
                if ((in >> std::ws).peek() == ':') in.get(), value.entries[item.text] = parse(in);
                if (c == '[') value.items.push_back(item);
                if ((in >> std::ws).peek() == ',') in.get();
            }
            in.get();
        } else {
            for (value.text = c; in && !std::strchr(",]} \n", in.peek());) value.text += char(in.get());
        }
        return value;
    }
};

int function_format() {  // that this MLX reads
    int major = 0, minor = 0, patch = 0;
    std::sscanf(mx::version(), "%d.%d.%d", &major, &minor, &patch);
    return std::tuple(major, minor, patch) >= std::tuple(0, 32, 1) ? 2 : 1;
}

Function import(const std::string& path, const std::string& backend) {
    if (!std::ifstream(path)) throw std::runtime_error(path + " is missing; export the folder again.");
    try {
        return [function = mx::import_function(path)](const std::vector<mx::array>& inputs) { return function(inputs); };
    } catch (const std::exception& error) {
        std::string cause = error.what(), reason = " is damaged; export the folder again";
        if (cause.find("stream") != cause.npos)
            reason = " is for " + backend + ", which this MLX lacks; export it with another --backend";
        throw std::runtime_error(path + reason + " (" + cause + ").");
    }
}

void write(mx::array frames, bool is_float) {
    auto pixels = mx::astype(frames, mx::float32);
    if (!is_float) {
        auto levels = mx::round(mx::multiply(mx::add(pixels, mx::array(1.0f)), mx::array(127.5f)));
        pixels = mx::astype(mx::clip(levels, mx::array(0.0f), mx::array(255.0f)), mx::uint8);
    }
    pixels = mx::contiguous(pixels);
    pixels.eval();
    std::fwrite(pixels.data<char>(), 1, pixels.nbytes(), stdout);
}

void decode(const std::string& folder, mx::array latents, bool is_float) {
    std::ifstream file(folder + "/decode.json");
    if (!file) throw std::runtime_error(folder + " has no decode.json; export it with mlx_ltx_vae export.");
    auto program = Json::parse(file);
    if (program["format"].number() != 1)
        throw std::runtime_error(folder + "/decode.json has another format than this program reads, which is 1.");
    if (auto format = function_format(); program["function_format"].number() != format)
        throw std::runtime_error(folder + " has functions of format " + program["function_format"].text + ", and MLX " +
                                 mx::version() + " reads format " + std::to_string(format) + "; see --for of export.");
    if (auto cache = program["plan"]["buffer_cache_bytes"].number()) mx::set_cache_limit(cache);
    auto weights = folder + "/weights.safetensors";  // or that of the folder that exports of several sizes are in
    if (!std::ifstream(weights)) weights = folder + "/../weights.safetensors";
    auto [arrays, metadata] = mx::load_safetensors(weights);
    if (metadata["fingerprint"] != program["fingerprint"].text)
        throw std::runtime_error(weights + " has the weights of another checkpoint.");
    auto& size = program["latents"];
    int count = latents.ndim() == 5 ? latents.shape(2) : 0;
    mx::Shape shape{1, int(size.at(0).number()), count, int(size.at(1).number()), int(size.at(2).number())};
    if (count < 1 || latents.shape() != shape)
        throw std::runtime_error("the latents have another shape, and this export is for (1, " + size.at(0).text +
                                 ", frames, " + size.at(1).text + ", " + size.at(2).text + ").");
    auto& backend = program["backend"].text;
    std::map<std::string, Function> functions;
    auto run = [&](const Json& numbers) {
        for (auto& number : numbers.items) {
            auto& call = program["calls"].at(number.number());
            std::vector<mx::array> inputs;
            for (auto& name : call["inputs"].items) {
                Json::check(arrays.count(name.text), "no call makes " + name.text);
                inputs.push_back(arrays.at(name.text));
            }
            for (auto& name : call["unused"].items) arrays.erase(name.text);
            auto& function = functions[call["function"].text];
            if (!function) function = mx::compile(import(folder + "/" + call["function"].text + ".mlxfn", backend));
            auto outputs = [&] {
                try {
                    return function(inputs);
                } catch (const std::invalid_argument&) {
                    throw std::runtime_error(folder + "/" + call["function"].text +
                                             ".mlxfn takes other arrays than its call has; export the folder again.");
                }
            }();
            Json::check(outputs.size() == call["outputs"].items.size(), "a function has other results");
            inputs.clear();  // so that their memory is free for the results
            mx::eval(outputs);
            for (auto& name : call["outputs"].items)
                arrays.insert_or_assign(name.text, outputs[&name - call["outputs"].items.data()]);
            outputs.clear();
            if (auto node = arrays.extract("frames")) write(node.mapped(), is_float);
        }
    };
    for (int i = 0; i < count; i++) {
        auto frame = mx::slice(latents, {0, 0, i, 0, 0}, {1, shape[1], i + 1, shape[3], shape[4]});
        arrays.insert_or_assign("latents", mx::astype(frame, mx::float32));
        arrays.insert_or_assign("index", mx::array(i, mx::uint32));
        run(program["steps"].at_most(i));
    }
    run(program["ends"].at_most(count - 1));
}

int main(int count, char** words) {
    if (count < 3) return std::fputs("usage: run FOLDER LATENTS.safetensors [--float] > frames.rgb\n", stderr), 1;
    try {
        auto tensors = mx::load_safetensors(words[2]).first;
        if (!tensors.count("latents")) throw std::runtime_error(std::string(words[2]) + " has no tensor latents.");
        auto latents = tensors.at("latents");
        if (latents.ndim() == 4) latents = mx::expand_dims(latents, 0);
        decode(words[1], latents, count > 3 && !std::strcmp(words[3], "--float"));
    } catch (const std::exception& error) {
        return std::fprintf(stderr, "error: %s\n", error.what()), 1;
    }
    return 0;
}
