// Decodes LTX latents as run.py does, with a folder of exported functions: run FOLDER LATENTS.safetensors [--float]
//
// docs/export.md describes the folder. Only MLX is needed. With the headers and the library of its Python wheel:
//   MLX=$(python -c "import mlx.core, pathlib; print(pathlib.Path(mlx.core.__file__).parent)")
//   g++ -std=c++20 -O2 run.cpp -I$MLX/include -L$MLX/lib -lmlx -Wl,-rpath,$MLX/lib -o run

#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>

#include "mlx/mlx.h"
#include "mlx/version.h"

namespace mx = mlx::core;
using Function = std::function<std::vector<mx::array>(const std::vector<mx::array>&)>;

struct Json {
    std::string text;  // of a string or a number
    std::vector<Json> items;
    std::map<std::string, Json> entries;
    const Json& operator[](const std::string& name) const { return entries.at(name); }
    const Json& at(size_t index) const { return items.at(std::min(index, items.size() - 1)); }
    int number() const { return std::stoi(text); }
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

int numeric(const std::string& version) {
    int major = 0, minor = 0, patch = 0;
    std::sscanf(version.c_str(), "%d.%d.%d", &major, &minor, &patch);
    return 1000000 * major + 1000 * minor + patch;
}

Function import(const std::string& path) {
    return [function = mx::import_function(path)](const std::vector<mx::array>& inputs) { return function(inputs); };
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
    if (numeric(mx::version()) < numeric(program["mlx"].text))
        throw std::runtime_error(folder + " is of MLX " + program["mlx"].text + "; this is " + mx::version() + ".");
    if (auto cache = std::stoll(program["plan"]["buffer_cache_bytes"].text)) mx::set_cache_limit(cache);
    auto [arrays, metadata] = mx::load_safetensors(folder + "/weights.safetensors");
    if (metadata["fingerprint"] != program["fingerprint"].text)
        throw std::runtime_error(folder + "/weights.safetensors has the weights of another checkpoint.");
    auto& size = program["latents"].items;
    int count = latents.ndim() == 5 ? latents.shape(2) : 0;
    mx::Shape shape{1, size[0].number(), count, size[1].number(), size[2].number()};
    if (count < 1 || latents.shape() != shape)
        throw std::runtime_error("the latents have another shape, and this export is for (1, " + size[0].text +
                                 ", frames, " + size[1].text + ", " + size[2].text + ").");
    std::map<std::string, Function> functions;
    auto run = [&](const Json& numbers) {
        for (auto& number : numbers.items) {
            auto& call = program["calls"].items[number.number()];
            std::vector<mx::array> inputs;
            for (auto& name : call["inputs"].items) inputs.push_back(arrays.at(name.text));
            for (auto& name : call["unused"].items) arrays.erase(name.text);
            auto& function = functions[call["function"].text];
            if (!function) function = mx::compile(import(folder + "/" + call["function"].text + ".mlxfn"));
            auto outputs = function(inputs);
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
        run(program["steps"].at(i));
    }
    run(program["ends"].at(count - 1));
}

int main(int count, char** words) {
    if (count < 3) return std::fputs("usage: run FOLDER LATENTS.safetensors [--float] > frames.rgb\n", stderr), 1;
    try {
        auto latents = mx::load_safetensors(words[2]).first.at("latents");
        if (latents.ndim() == 4) latents = mx::expand_dims(latents, 0);
        decode(words[1], latents, count > 3 && !std::strcmp(words[3], "--float"));
    } catch (const std::exception& error) {
        return std::fprintf(stderr, "error: %s\n", error.what()), 1;
    }
    return 0;
}
