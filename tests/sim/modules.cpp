// Module images and kernel launches. An image is what the real driver would take: PTX text, a cubin or an AMD code object
// for the architecture of the card. The kernels that run are their host twins, found by name; a name that is not in the image is
// not found, so a kernel that was left out of the real build is missing here too. The text "strata-sim-kernels" stands
// for an image with every kernel.
#include <cstdio>
#include <cstdlib>

#include "world.h"

namespace sim {

static constexpr char EVERY_KERNEL[] = "strata-sim-kernels";
static constexpr size_t SHARED_BYTES = 48 << 10, SHARED_OPT_IN_BYTES = 99 << 10;

/// PTX versions by driver: the newest that each can compile.
static int newest_ptx(int driver) {
    static const int table[][2] = {{13000, 90}, {12090, 88}, {12080, 87}, {12050, 85}, {12040, 84},
                                   {12030, 83}, {12020, 82}, {12010, 81}, {12000, 80}, {11080, 78}};
    for (const auto& [from, ptx] : table)
        if (driver >= from) return ptx;
    return 74;
}

static size_t elf_bytes(const unsigned char* image) {
    uint64_t sections;
    uint16_t section_bytes, section_count;
    std::memcpy(&sections, image + 40, 8);
    std::memcpy(&section_bytes, image + 58, 2);
    std::memcpy(&section_count, image + 60, 2);
    return sections + static_cast<size_t>(section_bytes) * section_count;
}

static Error check_cubin(const std::string& image, const Card& card) {
    // Bits 0..8 of the flags, or 8..16 in newer ABIs, are the compute capability.
    uint32_t flags;
    std::memcpy(&flags, image.data() + 48, 4);
    const unsigned abi = static_cast<unsigned char>(image[8]);
    const int capability = static_cast<int>(abi >= 8 ? flags >> 8 & 0xff : flags & 0xff);
    const int have = static_cast<int>(std::strtod(card.arch.c_str(), nullptr) * 10 + 0.5);
    return capability / 10 == have / 10 && capability <= have ? OK : NO_BINARY_FOR_GPU;
}

static Error check_ptx(const std::string& image, const Card& card, int driver) {
    const size_t version = image.find(".version "), target = image.find(".target sm_");
    if (version == std::string::npos || target == std::string::npos) return INVALID_IMAGE;
    const int isa = static_cast<int>(std::strtod(image.c_str() + version + 9, nullptr) * 10 + 0.5);
    if (isa > newest_ptx(driver)) return UNSUPPORTED_PTX_VERSION;
    const int have = static_cast<int>(std::strtod(card.arch.c_str(), nullptr) * 10 + 0.5);
    return std::atoi(image.c_str() + target + 11) <= have ? OK : NO_BINARY_FOR_GPU;
}

static Error check_code_object(const std::string& image, const Card& card) {
    const std::string target = "amdgcn-amd-amdhsa--" + card.arch;
    for (size_t at = image.find(target); at != std::string::npos; at = image.find(target, at + 1))
        if (!std::isalnum(static_cast<unsigned char>(image[at + target.size()]))) return OK;
    return NO_BINARY_FOR_GPU;
}

static Error check_image(const std::string& image, const Card& card, Vendor vendor, int driver) {
    if (image == EVERY_KERNEL) return OK;
    const bool elf = image.size() > 64 && image.compare(0, 4, "\x7f" "ELF") == 0;
    if (!elf) return vendor == Vendor::Cuda ? check_ptx(image, card, driver) : INVALID_IMAGE;
    uint16_t machine;
    std::memcpy(&machine, image.data() + 18, 2);
    if (machine == 190 && vendor == Vendor::Cuda) return check_cubin(image, card);
    if (machine == 224 && vendor == Vendor::Hip) return check_code_object(image, card);
    return INVALID_IMAGE;
}

Error World::load_module(int card, const void* data, Module** out) {
    if (fails(Taking::Module)) return OUT_OF_MEMORY;
    const auto* bytes = static_cast<const unsigned char*>(data);
    const bool elf = !std::memcmp(bytes, "\x7f" "ELF", 4);
    const size_t len = elf ? elf_bytes(bytes) : std::strlen(static_cast<const char*>(data));
    std::string image(static_cast<const char*>(data), len);
    if (const Error e = check_image(image, cards[card], vendor, driver_version)) return e;
    if (const Error e = charge(card, cards[card].module_bytes)) return e;
    live[static_cast<int>(Taking::Module)]++;
    *out = new Module{std::move(image), card};
    return OK;
}

/// A whole word of the image: a symbol of an ELF file, or the name of a PTX entry.
static bool names(const std::string& image, const std::string& name) {
    auto word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; };
    for (size_t at = image.find(name); at != std::string::npos; at = image.find(name, at + 1)) {
        const size_t end = at + name.size();
        if ((at == 0 || !word(image[at - 1])) && (end == image.size() || !word(image[end]))) return true;
    }
    return false;
}

Error World::find_function(Module* module, const char* name, Function** out) {
    if (module->image != EVERY_KERNEL && !names(module->image, name)) return NOT_FOUND;
    const simt::Kernel* kernel = find_kernel ? find_kernel(name) : nullptr;
    if (!kernel) {
        fprintf(stderr, "simulated driver: no host twin of kernel %s in '%s'\n", name, kernels_path.c_str());
        return NOT_FOUND;
    }
    *out = new Function{kernel, module->card, SHARED_BYTES};
    return OK;
}

static bool sizes_fit(const unsigned grid[3], const unsigned block[3], size_t shared, const Function& f) {
    const uint64_t threads = static_cast<uint64_t>(block[0]) * block[1] * block[2];
    return grid[0] && grid[1] && grid[2] && grid[0] <= 0x7fffffff && grid[1] <= 65535 && grid[2] <= 65535 && threads &&
           threads <= 1024 && block[2] <= 64 && shared <= f.max_dynamic_shared && f.max_dynamic_shared <= SHARED_OPT_IN_BYTES;
}

Error World::launch(Stream* stream, Function* f, const unsigned grid[3], const unsigned block[3], size_t shared, void** arguments) {
    Card& card = cards[stream->card];
    if (f->card != stream->card) return INVALID_HANDLE;
    if (!sizes_fit(grid, block, shared, *f)) return INVALID_VALUE;
    if (!card.touched) {
        if (const Error e = charge(stream->card, card.late_bytes)) return e;
        card.touched = true;
    }
    // Arguments are copied when a kernel is launched, and lie one behind the other.
    size_t total = 0;
    for (unsigned i = 0; i < f->kernel->arguments; i++) total += (f->kernel->argument_bytes[i] + 15u) / 16 * 16;
    auto bytes = std::make_shared<std::vector<unsigned char>>(total + 16);
    auto places = std::make_shared<std::vector<void*>>();
    size_t next = 0;
    for (unsigned i = 0; i < f->kernel->arguments; i++) {
        std::memcpy(bytes->data() + next, arguments[i], f->kernel->argument_bytes[i]);
        places->push_back(bytes->data() + next);
        next += (f->kernel->argument_bytes[i] + 15u) / 16 * 16;
    }
    const simt::Kernel* kernel = f->kernel;
    const int number = stream->card;
    SimgpuLaunch launch{{grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared, nullptr, card.wave, reversed, workers,
                        fill_byte};
    auto run = [this, kernel, number, launch, bytes, places]() mutable {
        for (unsigned i = 0; i < kernel->pointer_count; i++) {
            void* pointer;
            int owner_card = number;
            std::memcpy(&pointer, static_cast<char*>((*places)[kernel->pointers[i].argument]) + kernel->pointers[i].offset, 8);
            const bool known = owner(pointer, 1, &owner_card);
            if (pointer && (!known || (owner_card >= 0 && owner_card != number))) {
                fprintf(stderr, "simulated driver: kernel %s: pointer %u is of %s\n", kernel->name, i,
                        known ? "another card" : "no allocation");
                cards[number].broken = ILLEGAL_ADDRESS;
                return;
            }
        }
        launch.arguments = places->data();
        if (run_kernel(kernel, &launch) == SIMGPU_DEADLOCK) {
            fprintf(stderr, "simulated driver: kernel %s: a barrier or collective that some threads never reach\n", kernel->name);
            cards[number].broken = LAUNCH_FAILED;
        }
    };
    return enqueue(stream, {Task::Launch, run});
}

}  // namespace sim
