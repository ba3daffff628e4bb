/*
 * forebay for C++17: what forebay.h has, with owners that clean up and errors that are thrown.
 *
 *   forebay::device gpu = forebay::device::best();
 *   forebay::pool pool{gpu};
 *   forebay::buffer<float> x{pool, 1024};
 *   x.copy_from(std::vector<float>(1024, 2.0f));
 *
 * Owners move and do not copy. A moved-from or default-made owner owns nothing; using it is an error that
 * the library tells, not undefined. docs/cpp.md begins at the beginning.
 *
 * Other libraries get their memory from a pool through memory_resource (std::pmr), stream_allocator (Thrust, CUB) and,
 * where FOREBAY_WITH_CUDA_MR is defined before this header is included, cuda_resource (cuda::mr, RMM).
 */

#ifndef FOREBAY_HPP
#define FOREBAY_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#if __has_include(<memory_resource>)
#include <memory_resource>
#endif
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef FOREBAY_WITH_CUDA_MR
#include <mutex>
#include <unordered_map>

#include <cuda/memory_resource>
#endif

#include "forebay.h"

namespace forebay {

/* The failure of a call. What is thrown is a std::exception as well: out_of_memory is a std::bad_alloc, and every other
 * failure a std::runtime_error. */
class error {
public:
    virtual ~error() = default;

    /* The message: what happened, the figures, what to do. */
    virtual const char *what() const noexcept = 0;

    /* The status, for programs. */
    forebay_status code() const noexcept { return code_; }

    /* Its name, as it is written in C. */
    const char *name() const noexcept { return forebay_status_name(static_cast<std::int32_t>(code_)); }

protected:
    explicit error(forebay_status code) noexcept : code_(code) {}
    error(const error &) noexcept = default;
    error &operator=(const error &) noexcept = default;

private:
    forebay_status code_;
};

/* There is not that much memory. Catch it to free some and try again. */
class out_of_memory : public error, public std::bad_alloc {
public:
    out_of_memory(forebay_status code, const std::string &words) : error(code), words_(words) {}

    const char *what() const noexcept override { return words_.what(); }

private:
    /* Its text is copied without allocating, as an exception must be. */
    std::runtime_error words_;
};

/* Any other failure. */
class call_error : public error, public std::runtime_error {
public:
    call_error(forebay_status code, const std::string &words) : error(code), std::runtime_error(words) {}

    const char *what() const noexcept override { return std::runtime_error::what(); }
};

/* Throws what a call failed with. */
inline void check(forebay_status status) {
    if (status == FOREBAY_STATUS_OK) {
        return;
    }
    if (status == FOREBAY_STATUS_OUT_OF_MEMORY || status == FOREBAY_STATUS_FULL) {
        throw out_of_memory(status, forebay_last_error());
    }
    throw call_error(status, forebay_last_error());
}

namespace detail {

/* Values at consecutive addresses of the host. */
template <typename T>
class values_of {
public:
    T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return count_; }
    bool empty() const noexcept { return count_ == 0; }
    T *begin() const noexcept { return data_; }
    T *end() const noexcept { return data_ + count_; }
    T &operator[](std::size_t index) const noexcept { return data_[index]; }

protected:
    values_of() noexcept = default;
    values_of(T *data, std::size_t count) noexcept : data_(data), count_(count) {}
    values_of(values_of &&other) noexcept { swap_values(other); }

    void set(T *data, std::size_t count) noexcept {
        data_ = data;
        count_ = count;
    }

    void swap_values(values_of &other) noexcept {
        std::swap(data_, other.data_);
        std::swap(count_, other.count_);
    }

private:
    T *data_ = nullptr;
    std::size_t count_ = 0;
};

/* The value of no handle of any kind: the library refuses it. An owner has it that has nothing, where zero would name
 * something: the default stream, the buffers of the whole process. */
inline constexpr std::uint64_t no_handle = UINT64_MAX - 1;

/* A handle that one owner has. Close gives it up. None is what it has without one. */
template <typename Handle, forebay_status (*Close)(Handle), std::uint64_t None = 0>
class owner {
public:
    owner() noexcept = default;
    explicit owner(Handle handle) noexcept : handle_(handle) {}
    owner(const owner &) = delete;
    owner &operator=(const owner &) = delete;
    owner(owner &&other) noexcept : handle_(other.release()) {}

    owner &operator=(owner &&other) noexcept {
        if (this != &other) {
            reset();
            handle_ = other.release();
        }
        return *this;
    }

    ~owner() { reset(); }

    /* Closes it now; nothing where there is nothing. What is refused here is told by close() of the classes. */
    void reset() noexcept {
        if (*this) {
            static_cast<void>(Close(release()));
        }
    }

    /* Gives the handle up to the caller, who closes it. */
    Handle release() noexcept { return std::exchange(handle_, Handle{None}); }

    Handle get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_.id != 0 && handle_.id != None; }

private:
    Handle handle_{None};
};

inline forebay_status cancel_transfer(forebay_transfer transfer) noexcept {
    static_cast<void>(forebay_transfer_cancel(transfer, nullptr));
    return forebay_transfer_close(transfer);
}

inline forebay_status close_pool(forebay_pool pool) noexcept { return forebay_pool_close(pool, nullptr); }

/* What a call writes to its last argument. */
template <typename Result, typename Call, typename... Arguments>
Result result_of(Call call, Arguments... arguments) {
    Result result{};
    check(call(arguments..., &result));
    return result;
}

/* The same for a structure that has its size. */
template <typename Result, typename Call, typename Handle>
Result described(Call call, Handle handle) {
    Result result{};
    result.struct_size = sizeof result;
    check(call(handle, &result));
    return result;
}

/* A handle to so many values, which their views have too, so that the memory stays where they are. */
template <typename Handle, forebay_status (*Close)(Handle)>
class shared_handle {
public:
    std::size_t size() const noexcept { return count_; }
    bool empty() const noexcept { return count_ == 0; }
    Handle get() const noexcept { return owner_ ? owner_->get() : Handle{0}; }

protected:
    using owner = detail::owner<Handle, Close>;

    shared_handle() noexcept = default;
    shared_handle(Handle handle, std::size_t count) : count_(count) {
        owner made(handle);
        owner_ = std::make_shared<owner>(std::move(made));
    }
    shared_handle(shared_handle &&other) noexcept
        : owner_(std::move(other.owner_)), count_(std::exchange(other.count_, 0)) {}
    shared_handle &operator=(shared_handle &&other) noexcept {
        owner_ = std::move(other.owner_);
        count_ = std::exchange(other.count_, 0);
        return *this;
    }

    std::shared_ptr<owner> owned() const { return owner_ ? owner_ : std::make_shared<owner>(); }

    std::shared_ptr<owner> owner_;
    std::size_t count_ = 0;
};

/* A text of the library's as a string. */
inline std::string taken(char *text) {
    const std::unique_ptr<char, void (*)(char *)> owned(text, forebay_string_free);
    return owned ? std::string(owned.get()) : std::string();
}

/* How many bytes so many values take. */
template <typename T>
std::uint64_t bytes_of(std::size_t count) {
    if (count > SIZE_MAX / sizeof(T)) {
        throw std::bad_array_new_length();
    }
    return static_cast<std::uint64_t>(count * sizeof(T));
}

/* The name of a number's type, which Rust and Python know as their own type of that size. */
template <typename T>
const char *number_name() noexcept {
    static_assert(std::is_arithmetic<T>::value && !std::is_same<T, bool>::value && sizeof(T) <= 8,
                  "no number that all languages have: give the type a name of your own, with a version");
    constexpr std::size_t power = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    constexpr const char *floats[] = {"", "", "f32", "f64"};
    constexpr const char *integers[] = {"i8", "i16", "i32", "i64"}, *naturals[] = {"u8", "u16", "u32", "u64"};
    return (std::is_floating_point<T>::value ? floats : std::is_signed<T>::value ? integers : naturals)[power];
}

/* Frees a block in the order of its stream; where that was closed, once the device has done all its work. */
inline forebay_status give_back(forebay_pool pool, void *block, forebay_stream stream) noexcept {
    const forebay_status status = forebay_free(pool, block, stream);
    /* The stream's handle or the pool's: of the pool's the second call says so again. */
    const bool closed = status == FOREBAY_STATUS_INVALID_HANDLE && stream.id != 0;
    return closed ? forebay_free_synchronized(pool, block) : status;
}

/* Allocates in the order of a stream. A block of forebay_alloc begins at a multiple of 512. */
inline void *allocate(forebay_pool pool, std::size_t bytes, std::size_t alignment, forebay_stream stream) {
    void *block = nullptr;
    const bool plain = alignment <= 512 && (alignment & (alignment - 1)) == 0;
    check(plain ? forebay_alloc(pool, bytes, stream, &block)
                : forebay_alloc_aligned(pool, bytes, alignment, stream, &block));
    return block;
}

/* The same, for a user that knows no streams: the block can be used at once. */
inline void *allocate_synchronized(forebay_pool pool, forebay_device device, std::size_t bytes, std::size_t alignment,
                                   forebay_stream stream) {
    void *block = allocate(pool, bytes, alignment, stream);
    const forebay_status status = forebay_stream_synchronize(device, stream);
    if (status != FOREBAY_STATUS_OK) {
        const call_error reason(status, forebay_last_error());
        static_cast<void>(give_back(pool, block, stream));
        throw reason;
    }
    return block;
}

} // namespace detail

/* A device: somewhere memory lives and work runs. */
class device {
public:
    /* None. */
    device() noexcept = default;

    /* By name: "host", "sim", "cuda:0". */
    explicit device(const char *name) {
        check(forebay_check());
        owner_ = owner(detail::result_of<forebay_device>(forebay_device_open, name));
    }
    explicit device(const std::string &name) : device(name.c_str()) {}

    /* The first GPU, else the host. */
    static device best() {
        check(forebay_check());
        device found;
        found.owner_ = owner(detail::result_of<forebay_device>(forebay_device_best));
        return found;
    }

    /* What it is, and how much memory it has now. */
    forebay_device_info info() const { return detail::described<forebay_device_info>(forebay_device_describe, get()); }

    std::string name() const { return info().name; }

    /* Whether it can do all of FOREBAY_CAN_... */
    bool can(std::uint64_t capabilities) const { return (info().capabilities & capabilities) == capabilities; }

    /* Waits for all its work. */
    void synchronize() const { check(forebay_device_synchronize(get())); }

    void close() { check(forebay_device_close(owner_.release())); }
    forebay_device get() const noexcept { return owner_.get(); }
    explicit operator bool() const noexcept { return static_cast<bool>(owner_); }

private:
    using owner = detail::owner<forebay_device, forebay_device_close>;
    owner owner_;
};

/* A stream: an order of work on a device. One that was moved from or closed is none, not the default stream: every
 * call with it throws FOREBAY_STATUS_INVALID_HANDLE. */
class stream {
public:
    /* The default stream of whichever device a call is about. */
    stream() noexcept : owner_(forebay_stream{0}) {}

    /* A new one; priority above 0 goes first, below 0 last. */
    explicit stream(const device &of, int priority = 0) {
        owner_ = owner(detail::result_of<forebay_stream>(forebay_stream_create, of.get(), priority));
    }

    /* One that another library made and will destroy, as a cudaStream_t; it must outlive this. */
    static stream adopt(const device &of, void *raw) {
        stream adopted;
        adopted.owner_ = owner(detail::result_of<forebay_stream>(forebay_stream_adopt, of.get(), raw));
        return adopted;
    }

    /* Waits for its work. Not for the default stream, which does not know its device: device::synchronize. */
    void synchronize() const { check(forebay_stream_synchronize(forebay_device{0}, get())); }

    bool done() const { return detail::result_of<std::int32_t>(forebay_stream_query, forebay_device{0}, get()) != 0; }

    /* As the driver names it. */
    void *raw() const { return detail::result_of<void *>(forebay_stream_raw, get()); }

    /* The default stream cannot be closed, and stays what it is. */
    void close() { check(forebay_stream_close(owner_ ? owner_.release() : get())); }
    forebay_stream get() const noexcept { return owner_.get(); }

private:
    using owner = detail::owner<forebay_stream, forebay_stream_close, detail::no_handle>;
    owner owner_;
};

/* A pool of a device's memory. */
class pool {
public:
    /* None. */
    pool() noexcept = default;

    /* One of its own; settings as FOREBAY_CONF has them: "max_bytes:8GiB,upkeep:on". */
    explicit pool(const device &of, const char *settings = nullptr) {
        take(detail::result_of<forebay_pool>(forebay_pool_create, of.get(), settings));
    }
    pool(const device &of, const std::string &settings) : pool(of, settings.c_str()) {}

    /* The one that the whole process shares. */
    static pool of_process(const device &of) {
        pool shared;
        shared.take(detail::result_of<forebay_pool>(forebay_pool_of_process, of.get()));
        return shared;
    }

    /* At least so many bytes, to be used in the order of a stream. */
    void *alloc(std::uint64_t size, const stream &on = stream()) const {
        return detail::result_of<void *>(forebay_alloc, get(), size, on.get());
    }

    void *alloc_aligned(std::uint64_t size, std::uint64_t alignment, const stream &on = stream()) const {
        return detail::result_of<void *>(forebay_alloc_aligned, get(), size, alignment, on.get());
    }

    /* Blocks of all these sizes, or none. */
    std::vector<void *> alloc_batch(const std::vector<std::uint64_t> &sizes, const stream &on = stream()) const {
        std::vector<void *> blocks(sizes.size(), nullptr);
        check(forebay_alloc_batch(get(), sizes.data(), sizes.size(), on.get(), blocks.data()));
        return blocks;
    }

    void free(void *block, const stream &on = stream()) const { check(forebay_free(get(), block, on.get())); }

    /* Gives back a block whose stream was closed: waits for the device, then frees in the order of the default stream. */
    void free_synchronized(void *block) const { check(forebay_free_synchronized(get(), block)); }

    void free_sized(void *block, std::uint64_t size, const stream &on = stream()) const {
        check(forebay_free_sized(get(), block, size, on.get()));
    }

    /* Says that a block is used on a further stream. */
    void record_use(void *block, const stream &on) const { check(forebay_record_use(get(), block, on.get())); }

    void forget(const stream &gone) const { check(forebay_forget_stream(get(), gone.get())); }

    forebay_block_info query(const void *block) const {
        forebay_block_info info{};
        info.struct_size = sizeof info;
        check(forebay_block_query(get(), block, &info));
        return info;
    }

    forebay_statistics statistics() const {
        return detail::described<forebay_statistics>(forebay_pool_statistics, get());
    }

    /* All there is to see, as JSON; a summary for people. */
    std::string snapshot() const { return text(forebay_pool_snapshot); }
    std::string summary() const { return text(forebay_pool_summary); }

    void set(const std::string &key, const std::string &value) const {
        check(forebay_pool_set(get(), key.c_str(), value.c_str()));
    }

    std::string setting(const std::string &key) const {
        return detail::taken(detail::result_of<char *>(forebay_pool_get, get(), key.c_str()));
    }

    std::uint64_t limit() const { return number(forebay_pool_limit); }
    std::uint64_t empty_cache() const { return number(forebay_pool_empty_cache); }

    forebay_pressure pressure() const { return detail::result_of<forebay_pressure>(forebay_pool_pressure, get()); }

    std::uint64_t trim(std::uint64_t keep) const {
        return detail::result_of<std::uint64_t>(forebay_pool_trim, get(), keep);
    }

    std::uint64_t collect(std::uint64_t age_ms) const {
        return detail::result_of<std::uint64_t>(forebay_pool_collect, get(), age_ms);
    }

    void defragment() const { check(forebay_pool_defragment(get())); }
    void process_deferred() const { check(forebay_pool_process_deferred(get())); }

    /* Takes blocks of these sizes, so many of each, at once, and gives them back. */
    forebay_warm_up_result warm_up(const std::vector<std::pair<std::uint64_t, std::uint64_t>> &shapes,
                                    const stream &on = stream()) const {
        std::vector<std::uint64_t> sizes;
        std::vector<std::uint64_t> counts;
        for (const auto &shape : shapes) {
            sizes.push_back(shape.first);
            counts.push_back(shape.second);
        }
        forebay_warm_up_result figures{};
        figures.struct_size = sizeof figures;
        check(forebay_pool_warm_up(get(), sizes.data(), counts.data(), sizes.size(), on.get(), &figures));
        return figures;
    }

    /* Records what the pool is asked, to a file that `forebay replay` plays. */
    void start_trace(std::uint64_t events) const { check(forebay_trace_start(get(), events)); }

    std::uint64_t stop_trace(const std::string &path) const {
        return detail::result_of<std::uint64_t>(forebay_trace_stop, get(), path.c_str());
    }

    /* Closes it; gives how many blocks were still live. */
    std::uint64_t close() {
        std::uint64_t left = 0;
        check(forebay_pool_close(owner_.release(), &left));
        device_.reset();
        return left;
    }

    forebay_pool get() const noexcept { return owner_.get(); }
    /* The device's handle, for copies. */
    forebay_device device_handle() const noexcept { return device_.get(); }
    explicit operator bool() const noexcept { return static_cast<bool>(owner_); }

private:
    using owner = detail::owner<forebay_pool, detail::close_pool>;
    using device_owner = detail::owner<forebay_device, forebay_device_close>;

    /* Takes a pool over, with a handle of its own to the device: then whoever made the pool need not keep one. */
    void take(forebay_pool handle) {
        owner_ = owner(handle);
        device_ = device_owner(detail::result_of<forebay_device>(forebay_pool_device, handle));
    }

    std::string text(forebay_status (*ask)(forebay_pool, char **)) const {
        return detail::taken(detail::result_of<char *>(ask, get()));
    }

    std::uint64_t number(forebay_status (*ask)(forebay_pool, std::uint64_t *)) const {
        return detail::result_of<std::uint64_t>(ask, get());
    }

    device_owner device_;
    owner owner_;
};

/* An upload or download under way, made by buffer<T>. When it goes it is cancelled, unless all was handed to the device, and
 * nothing uses the memory of either side any more: declare it after them. Any thread may use it, several at once. */
class transfer {
public:
    /* None. */
    transfer() noexcept = default;

    /* Takes over a handle of forebay_upload_async or forebay_download_async. */
    explicit transfer(forebay_transfer handle) noexcept : owner_(handle) {}

    /* Waits until it is done, and throws what it failed with. The memory is free from then on. */
    void wait() const { check(forebay_transfer_wait(get())); }

    /* Waits until all was handed to the device, and makes later work on the stream wait for it there. The source of an
     * upload may change then, unless it is pinned. */
    void order() const { check(forebay_transfer_order(get())); }

    /* Whether it is done, or has failed. */
    bool done() const { return detail::result_of<std::int32_t>(forebay_transfer_is_done, get()) != 0; }

    /* The bytes that were handed over, and all bytes. */
    std::pair<std::uint64_t, std::uint64_t> progress() const {
        std::pair<std::uint64_t, std::uint64_t> found{0, 0};
        check(forebay_transfer_progress(get(), &found.first, &found.second));
        return found;
    }

    /* Ends it early; wait() throws FOREBAY_STATUS_CANCELLED then. False where all was handed over already. */
    bool cancel() const { return detail::result_of<std::int32_t>(forebay_transfer_cancel, get()) != 0; }

    /* Waits until it is done, and throws what it failed with. */
    void close() { check(forebay_transfer_close(owner_.release())); }
    forebay_transfer get() const noexcept { return owner_.get(); }
    explicit operator bool() const noexcept { return static_cast<bool>(owner_); }

private:
    using owner = detail::owner<forebay_transfer, detail::cancel_transfer>;
    owner owner_;
};

/* Values in device memory, given back in the order of the stream they were allocated on. Where that stream was closed
 * first, the buffer waits for the device when it goes, and its memory goes back all the same; copies, fills and
 * synchronize() throw, since there is no order left to do them in. The pool must outlive the buffer: its memory goes with
 * the pool, and every later call throws. */
template <typename T>
class buffer {
    static_assert(std::is_trivially_copyable<T>::value, "what is copied to a device is copied byte by byte");

public:
    /* Nothing. */
    buffer() noexcept = default;

    buffer(const pool &of, std::size_t count, const stream &on = stream())
        : pool_(of.get()), device_(of.device_handle()), stream_(on.get()), count_(count) {
        void *block = nullptr;
        check(forebay_alloc(pool_, detail::bytes_of<T>(count), stream_, &block));
        data_ = static_cast<T *>(block);
    }

    buffer(const buffer &) = delete;
    buffer &operator=(const buffer &) = delete;
    buffer(buffer &&other) noexcept { swap(other); }

    buffer &operator=(buffer &&other) noexcept {
        buffer moved(std::move(other));
        swap(moved);
        return *this;
    }

    ~buffer() {
        if (data_ != nullptr) {
            static_cast<void>(give_back());
        }
    }

    /* Gives it back now, in the order of its stream; nothing where there is nothing. Where that is refused it throws, and
     * the buffer keeps its memory: free() can be called again, here or with another stream. */
    void free() {
        if (data_ != nullptr) {
            settle(give_back());
        }
    }

    /* The same in the order of another stream of the device, which the caller has made wait for the buffer's. */
    void free(const stream &on) {
        if (data_ != nullptr) {
            settle(forebay_free(pool_, data_, on.get()));
        }
    }

    /* Gives the block up to the caller, who frees it. */
    T *release() noexcept {
        count_ = 0;
        return std::exchange(data_, nullptr);
    }

    /* The address on the device: for kernels, not to be followed here unless the device is the host. */
    T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return count_; }
    std::uint64_t bytes() const noexcept { return static_cast<std::uint64_t>(count_ * sizeof(T)); }
    bool empty() const noexcept { return count_ == 0; }

    /* Copies from the host, and waits for it. */
    void copy_from(const T *values, std::size_t count) const {
        enqueue_copy_from(values, count);
        synchronize();
    }
    void copy_from(const std::vector<T> &values) const { copy_from(values.data(), values.size()); }

    /* Copies to the host, and waits for it. */
    void copy_to(T *values, std::size_t count) const {
        enqueue_copy_to(values, count);
        synchronize();
    }

    std::vector<T> to_vector() const {
        std::vector<T> values(count_);
        copy_to(values.data(), values.size());
        return values;
    }

    /* The same without waiting: the values must be left alone until the stream was synchronised. */
    void enqueue_copy_from(const T *values, std::size_t count) const {
        require(count);
        check(forebay_copy_to_device(device_, data_, values, detail::bytes_of<T>(count), stream_));
    }
    void enqueue_copy_to(T *values, std::size_t count) const {
        require(count);
        check(forebay_copy_to_host(device_, values, data_, detail::bytes_of<T>(count), stream_));
    }

    /* Copies ordinary host memory with several threads, after the work on the stream, and waits. Priority above 0 goes
     * first, below 0 last. */
    void upload(const T *values, std::size_t count, int priority = 0) const {
        require(count);
        const forebay_transfer_options options = options_of(priority);
        check(forebay_upload(device_, data_, values, detail::bytes_of<T>(count), stream_, &options));
    }
    void upload(const std::vector<T> &values, int priority = 0) const {
        upload(values.data(), values.size(), priority);
    }
    void download(T *values, std::size_t count, int priority = 0) const {
        require(count);
        const forebay_transfer_options options = options_of(priority);
        check(forebay_download(device_, values, data_, detail::bytes_of<T>(count), stream_, &options));
    }
    std::vector<T> download(int priority = 0) const {
        std::vector<T> values(count_);
        download(values.data(), values.size(), priority);
        return values;
    }

    /* The same without waiting: the values and the buffer must be left alone until the transfer is done, or goes. */
    [[nodiscard]] transfer upload_async(const T *values, std::size_t count, int priority = 0) const {
        require(count);
        const forebay_transfer_options options = options_of(priority);
        return transfer(detail::result_of<forebay_transfer>(forebay_upload_async, device_, data_, values,
                                                            detail::bytes_of<T>(count), stream_, &options));
    }
    [[nodiscard]] transfer upload_async(const std::vector<T> &values, int priority = 0) const {
        return upload_async(values.data(), values.size(), priority);
    }
    /* Values that would be gone before they are copied. */
    transfer upload_async(std::vector<T> &&values, int priority = 0) const = delete;
    [[nodiscard]] transfer download_async(T *values, std::size_t count, int priority = 0) const {
        require(count);
        const forebay_transfer_options options = options_of(priority);
        return transfer(detail::result_of<forebay_transfer>(forebay_download_async, device_, values, data_,
                                                            detail::bytes_of<T>(count), stream_, &options));
    }

    /* Fills every byte with this one, in the order of the stream. */
    void fill_bytes(unsigned char byte) const {
        check(forebay_fill(device_, data_, bytes(), byte, 1, stream_));
    }

    /* Says that it is used on a further stream. */
    void record_use(const stream &on) const { check(forebay_record_use(pool_, data_, on.get())); }

    void synchronize() const { check(forebay_stream_synchronize(device_, stream_)); }

    void swap(buffer &other) noexcept {
        std::swap(pool_, other.pool_);
        std::swap(device_, other.device_);
        std::swap(stream_, other.stream_);
        std::swap(count_, other.count_);
        std::swap(data_, other.data_);
    }

private:
    forebay_status give_back() const noexcept { return detail::give_back(pool_, data_, stream_); }

    static forebay_transfer_options options_of(int priority) noexcept {
        return forebay_transfer_options{sizeof(forebay_transfer_options), priority};
    }

    /* Lets go of the block where it was freed, or is not the buffer's any more; then throws what was refused. A block that
     * was freed by its address is not tried again: the address may be another block's by then. After
     * FOREBAY_STATUS_CORRUPTED the block is taken back. */
    void settle(forebay_status status) {
        switch (status) {
        case FOREBAY_STATUS_OK:
        case FOREBAY_STATUS_NOT_A_BLOCK:
        case FOREBAY_STATUS_DOUBLE_FREE:
        case FOREBAY_STATUS_CORRUPTED:
            static_cast<void>(release());
            break;
        default:
            break;
        }
        check(status);
    }

    void require(std::size_t count) const {
        if (count > count_) {
            throw std::out_of_range("more values than the buffer has: " + std::to_string(count) + " of " +
                                    std::to_string(count_));
        }
    }

    forebay_pool pool_{0};
    forebay_device device_{0};
    forebay_stream stream_{0};
    std::size_t count_ = 0;
    T *data_ = nullptr;
};

/* Values in pinned host memory of a device, from its pool: what the device copies from and to without staging. The
 * device's copies from and to it must be done before it goes. The values are undefined at first. */
template <typename T>
class pinned_array : public detail::values_of<T> {
    using values = detail::values_of<T>;
    static_assert(std::is_trivially_copyable<T>::value, "what is copied to a device is copied byte by byte");

public:
    /* Nothing. */
    pinned_array() noexcept = default;

    pinned_array(const device &of, std::size_t count)
        : values(static_cast<T *>(detail::result_of<void *>(forebay_pinned_alloc, of.get(), detail::bytes_of<T>(count))),
                 count),
          device_(of.get()) {}

    pinned_array(const pinned_array &) = delete;
    pinned_array &operator=(const pinned_array &) = delete;
    pinned_array(pinned_array &&other) noexcept : values() { swap(other); }
    pinned_array &operator=(pinned_array &&other) noexcept {
        pinned_array moved(std::move(other));
        swap(moved);
        return *this;
    }
    /* The device must be open still: forebay knows the pool by its handle. */
    ~pinned_array() {
        if (this->data() != nullptr) {
            static_cast<void>(forebay_pinned_free(device_, this->data()));
        }
    }

    void swap(pinned_array &other) noexcept {
        std::swap(device_, other.device_);
        this->swap_values(other);
    }

private:
    forebay_device device_{0};
};

template <typename T>
class unified_buffer;

/* Makes buffers that are on the host and on a device. They outlive it. */
class buffer_manager {
public:
    /* None. */
    buffer_manager() noexcept = default;

    /* With a pool of its own. */
    explicit buffer_manager(const device &of) {
        owner_ = owner(detail::result_of<forebay_buffer_manager>(forebay_buffer_manager_create, of.get()));
    }

    /* With device memory from a pool, which the buffers keep open. */
    explicit buffer_manager(const pool &of) {
        owner_ = owner(detail::result_of<forebay_buffer_manager>(forebay_buffer_manager_over, of.get()));
    }

    forebay_buffer_totals totals() const {
        return detail::described<forebay_buffer_totals>(forebay_buffer_manager_totals, get());
    }

    /* Its live buffers, as JSON. Those of the whole process: forebay_live_buffers(forebay_buffer_manager{0}, ...). */
    std::string live_buffers() const {
        return detail::taken(detail::result_of<char *>(forebay_live_buffers, get()));
    }

    void close() { check(forebay_buffer_manager_close(owner_.release())); }
    forebay_buffer_manager get() const noexcept { return owner_.get(); }

private:
    using owner = detail::owner<forebay_buffer_manager, forebay_buffer_manager_close, detail::no_handle>;
    owner owner_;
};

/* Values of a unified_buffer in host memory, until this goes. While it lives, a call that conflicts with it throws
 * FOREBAY_STATUS_BUSY. It keeps the buffer's memory, also where the buffer goes first. T is const for reading. */
template <typename T>
class host_view : public detail::values_of<T> {
    using values = detail::values_of<T>;

public:
    host_view(const host_view &) = delete;
    host_view &operator=(const host_view &) = delete;
    host_view(host_view &&other) noexcept = default;
    host_view &operator=(host_view &&other) noexcept {
        host_view moved(std::move(other));
        std::swap(buffer_, moved.buffer_);
        std::swap(mapping_, moved.mapping_);
        this->swap_values(moved);
        return *this;
    }
    ~host_view() { release(); }

    /* Ends it now. */
    void release() noexcept {
        if (buffer_) {
            static_cast<void>(forebay_buffer_unmap(buffer_->get(), mapping_));
            buffer_.reset();
            this->set(nullptr, 0);
        }
    }

private:
    using owner = detail::owner<forebay_buffer, forebay_buffer_close>;
    template <typename U>
    friend class unified_buffer;

    host_view(std::shared_ptr<owner> buffer, std::size_t first, std::size_t count, forebay_access access)
        : buffer_(std::move(buffer)) {
        void *memory = nullptr;
        check(forebay_buffer_map(buffer_->get(), detail::bytes_of<T>(first), detail::bytes_of<T>(count),
                                 static_cast<std::uint32_t>(access), &mapping_, &memory));
        this->set(static_cast<T *>(memory), count);
    }

    std::shared_ptr<owner> buffer_;
    forebay_mapping mapping_{0};
};

/* Values with a replica on the host and one on a device, which are copied when and as far as a use needs it. */
template <typename T>
class unified_buffer : public detail::shared_handle<forebay_buffer, forebay_buffer_close> {
    static_assert(std::is_trivially_copyable<T>::value, "what is copied to a device is copied byte by byte");

public:
    /* Nothing. */
    unified_buffer() noexcept = default;

    /* So many values, all zero bytes. They have no memory until they are used. */
    unified_buffer(const buffer_manager &of, std::size_t count)
        : shared_handle(detail::result_of<forebay_buffer>(forebay_buffer_create, of.get(), detail::bytes_of<T>(count)),
                        count) {}
    unified_buffer(const buffer_manager &of, const std::vector<T> &values) : unified_buffer(of, values.size()) {
        copy_from(values);
    }

    /* The values in host memory, to read. */
    host_view<const T> host() const { return host(0, count_); }
    host_view<const T> host(std::size_t first, std::size_t count) const {
        return {owned(), first, count, FOREBAY_ACCESS_READ};
    }

    /* The values in host memory, to read and write. They count as newer than the device's. */
    host_view<T> host_mut() const { return host_mut(0, count_); }
    host_view<T> host_mut(std::size_t first, std::size_t count) const {
        return {owned(), first, count, FOREBAY_ACCESS_UPDATE};
    }

    /* The same for writing all of them: nothing is copied first. */
    host_view<T> overwrite() const { return {owned(), 0, count_, FOREBAY_ACCESS_OVERWRITE}; }

    /* The address on the device, for work on a stream that is enqueued before the next call. */
    const T *on_device(const stream &on = stream()) const { return acquire(FOREBAY_ACCESS_READ, on); }
    T *on_device_mut(const stream &on = stream()) const { return acquire(FOREBAY_ACCESS_UPDATE, on); }
    T *on_device_overwrite(const stream &on = stream()) const { return acquire(FOREBAY_ACCESS_OVERWRITE, on); }

    void copy_from(const std::vector<T> &values, std::size_t first = 0) const {
        check(forebay_buffer_copy_from(get(), detail::bytes_of<T>(first), values.data(), values.size() * sizeof(T)));
    }
    void copy_from(const unified_buffer &other, const stream &on = stream()) const {
        check(forebay_buffer_copy(get(), other.get(), on.get()));
    }

    std::vector<T> to_vector() const {
        std::vector<T> values(count_);
        check(forebay_buffer_copy_to(get(), 0, values.data(), count_ * sizeof(T)));
        return values;
    }

    void fill(const T &value) const {
        const host_view<T> view = overwrite();
        for (T &each : view) {
            each = value;
        }
    }

    void resize(std::size_t count) {
        check(forebay_buffer_resize(get(), detail::bytes_of<T>(count)));
        count_ = count;
    }

    void synchronize(const stream &on = stream()) const { check(forebay_buffer_synchronize(get(), on.get())); }

    std::uint64_t compact(forebay_side side, const stream &on = stream()) const {
        return detail::result_of<std::uint64_t>(forebay_buffer_compact, get(), static_cast<std::uint32_t>(side),
                                                on.get());
    }

    void invalidate(forebay_side side) const {
        check(forebay_buffer_invalidate(get(), static_cast<std::uint32_t>(side)));
    }

    forebay_buffer_info info() const { return detail::described<forebay_buffer_info>(forebay_buffer_describe, get()); }
    forebay_buffer_state state() const { return static_cast<forebay_buffer_state>(info().state); }

private:
    T *acquire(forebay_access access, const stream &on) const {
        return static_cast<T *>(detail::result_of<void *>(forebay_buffer_on_device, get(), 0, detail::bytes_of<T>(count_),
                                                          static_cast<std::uint32_t>(access), on.get()));
    }
};

/* The lock of a shared_buffer, which no other thread or process has until this goes, on the thread that made it. It keeps
 * the buffer, also where the shared_buffer goes first. */
class shared_lock {
public:
    shared_lock(const shared_lock &) = delete;
    shared_lock &operator=(const shared_lock &) = delete;
    shared_lock(shared_lock &&other) noexcept = default;
    shared_lock &operator=(shared_lock &&other) noexcept {
        shared_lock moved(std::move(other));
        std::swap(buffer_, moved.buffer_);
        return *this;
    }
    ~shared_lock() { release(); }

    /* Ends it now. */
    void release() noexcept {
        if (buffer_) {
            static_cast<void>(forebay_shared_unlock(buffer_->get()));
            buffer_.reset();
        }
    }

private:
    using owner = detail::owner<forebay_shared, forebay_shared_close>;
    template <typename T>
    friend class shared_buffer;

    shared_lock(std::shared_ptr<owner> buffer, std::int64_t timeout_ms) {
        check(forebay_shared_lock(buffer->get(), timeout_ms));
        buffer_ = std::move(buffer);
    }

    std::shared_ptr<owner> buffer_;
};

/* Values of a shared_buffer in host memory, under its lock until this goes, on the thread that made it. */
template <typename T>
class shared_view : public detail::values_of<T> {
    template <typename U>
    friend class shared_buffer;

    shared_view(shared_lock lock, T *data, std::size_t count)
        : detail::values_of<T>(data, count), lock_(std::move(lock)) {}

    shared_lock lock_;
};

/* Values that several processes have at the same time, found by name. Other processes may write at any moment: a read that
 * meets a write gets old values in part and new ones in part, unless all sides take the lock. */
template <typename T>
class shared_buffer : public detail::shared_handle<forebay_shared, forebay_shared_close> {
    static_assert(std::is_trivially_copyable<T>::value, "what processes share is copied byte by byte");

public:
    /* Nothing. */
    shared_buffer() noexcept = default;

    /* So many values, all zero bytes, under a name that no living process has. A structure needs a name of its type, which
     * is compared when the buffer is opened; put a version in it. Numbers have one. */
    static shared_buffer create(const buffer_manager &of, const std::string &name, std::size_t count) {
        return create(of, name, count, detail::number_name<T>());
    }
    static shared_buffer create(const buffer_manager &of, const std::string &name, std::size_t count,
                                const std::string &type_name) {
        return shared_buffer(detail::result_of<forebay_shared>(forebay_shared_create, of.get(), name.c_str(),
                                                               type_name.c_str(), detail::bytes_of<T>(count)));
    }

    /* The buffer of that name, which a process of this user has. */
    static shared_buffer open(const buffer_manager &of, const std::string &name) {
        return open(of, name, detail::number_name<T>());
    }
    static shared_buffer open(const buffer_manager &of, const std::string &name, const std::string &type_name) {
        return shared_buffer(
            detail::result_of<forebay_shared>(forebay_shared_open, of.get(), name.c_str(), type_name.c_str()));
    }

    /* The same, of exactly so many values; created where no process has the name. */
    static shared_buffer create_or_open(const buffer_manager &of, const std::string &name, std::size_t count) {
        return create_or_open(of, name, count, detail::number_name<T>());
    }
    static shared_buffer create_or_open(const buffer_manager &of, const std::string &name, std::size_t count,
                                        const std::string &type_name) {
        return shared_buffer(detail::result_of<forebay_shared>(forebay_shared_create_or_open, of.get(), name.c_str(),
                                                               type_name.c_str(), detail::bytes_of<T>(count)));
    }

    /* Copies of values. */
    std::vector<T> read(std::size_t first, std::size_t count) const {
        std::vector<T> values(count);
        check(forebay_shared_read(get(), detail::bytes_of<T>(first), values.data(), count * sizeof(T)));
        return values;
    }
    std::vector<T> to_vector() const { return read(0, count_); }

    void write(const std::vector<T> &values, std::size_t first = 0) const {
        check(forebay_shared_write(get(), detail::bytes_of<T>(first), values.data(), values.size() * sizeof(T)));
    }

    /* The lock, as soon as nobody else has it. After a time that is not negative FOREBAY_STATUS_TIMED_OUT is thrown. */
    shared_lock lock(std::chrono::milliseconds timeout = std::chrono::milliseconds(-1)) const {
        return {owned(), static_cast<std::int64_t>(timeout.count())};
    }

    /* The values in host memory, under the lock. FOREBAY_STATUS_UNSUPPORTED is thrown where the host cannot reach them. */
    shared_view<T> host(std::chrono::milliseconds timeout = std::chrono::milliseconds(-1)) const {
        void *data = detail::result_of<void *>(forebay_shared_host_address, get());
        return {lock(timeout), static_cast<T *>(data), count_};
    }

    /* The address on the device, of this process, as long as the buffer lives. */
    T *data() const {
        return static_cast<T *>(detail::result_of<void *>(forebay_shared_address, get()));
    }

    forebay_shared_info info() const { return detail::described<forebay_shared_info>(forebay_shared_describe, get()); }

private:
    explicit shared_buffer(forebay_shared handle) : shared_handle(handle, 0) {
        count_ = static_cast<std::size_t>(info().size_bytes / sizeof(T));
    }
};

/* Memory that is allocated one by one and given back all at once. */
class arena {
public:
    arena() noexcept = default;

    /* So many bytes; where most is above that it grows up to most. */
    arena(const pool &of, std::uint64_t capacity, std::uint64_t most = 0, const stream &on = stream()) {
        owner_ = owner(detail::result_of<forebay_arena>(forebay_arena_create, of.get(), capacity, most, on.get()));
    }

    void *alloc(std::uint64_t size, std::uint64_t alignment = 0) const {
        return detail::result_of<void *>(forebay_arena_alloc, get(), size, alignment);
    }

    template <typename T>
    T *alloc_of(std::size_t count) const {
        return static_cast<T *>(alloc(detail::bytes_of<T>(count)));
    }

    forebay_checkpoint checkpoint() const {
        return detail::result_of<forebay_checkpoint>(forebay_arena_checkpoint, get());
    }

    void rewind(forebay_checkpoint to) const { check(forebay_arena_rewind(get(), to)); }
    void reset() const { check(forebay_arena_reset(get())); }

    forebay_arena_usage usage() const { return detail::described<forebay_arena_usage>(forebay_arena_statistics, get()); }

    void close() { check(forebay_arena_close(owner_.release())); }
    forebay_arena get() const noexcept { return owner_.get(); }

private:
    using owner = detail::owner<forebay_arena, forebay_arena_close>;
    owner owner_;
};

/* Takes back what an arena gives out while this lives. */
class arena_scope {
public:
    explicit arena_scope(const arena &of) : arena_(of.get()) { check(forebay_arena_checkpoint(arena_, &start_)); }
    arena_scope(const arena_scope &) = delete;
    arena_scope &operator=(const arena_scope &) = delete;
    ~arena_scope() { static_cast<void>(forebay_arena_rewind(arena_, start_)); }

private:
    forebay_arena arena_;
    forebay_checkpoint start_{0};
};

/* Allocates under a tag, on this thread, while this lives. */
class tag_scope {
public:
    explicit tag_scope(const char *name) { check(forebay_tag_enter(name)); }
    tag_scope(const tag_scope &) = delete;
    tag_scope &operator=(const tag_scope &) = delete;
    ~tag_scope() { static_cast<void>(forebay_tag_leave()); }
};

/*
 * Memory of a pool for other libraries. Each of these remembers the pool and its streams by their handles, so the pool
 * must outlive what was allocated. Deallocating throws nothing; forebay_last_error() has the words of a refused free.
 */

#if __has_include(<memory_resource>)
/* For std::pmr containers: memory that the host itself reads and writes. The host and a simulated device have such
 * memory (FOREBAY_CAN_HOST_VISIBLE), a CUDA device does not: a pool of it is refused with FOREBAY_STATUS_UNSUPPORTED.
 * Allocating waits for earlier work on the memory. Work that uses the memory has to be done before it is
 * deallocated. */
class memory_resource : public std::pmr::memory_resource {
public:
    explicit memory_resource(const pool &of, const stream &on = stream())
        : pool_(of.get()), device_(of.device_handle()), stream_(on.get()) {
        const auto info = detail::described<forebay_device_info>(forebay_device_describe, device_);
        const std::uint64_t needed = FOREBAY_CAN_DATA | FOREBAY_CAN_HOST_VISIBLE;
        if ((info.capabilities & needed) != needed) {
            throw call_error(FOREBAY_STATUS_UNSUPPORTED, std::string("the host cannot use the memory of ") + info.name +
                                                             ": use a pool of the device \"host\"");
        }
    }

private:
    void *do_allocate(std::size_t bytes, std::size_t alignment) override {
        /* No bytes are one: std::pmr expects an address. */
        return detail::allocate_synchronized(pool_, device_, bytes == 0 ? 1 : bytes, alignment, stream_);
    }

    void do_deallocate(void *block, std::size_t, std::size_t) noexcept override {
        static_cast<void>(detail::give_back(pool_, block, stream_));
    }

    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
        const auto *same = dynamic_cast<const memory_resource *>(&other);
        return same != nullptr && same->pool_.id == pool_.id && same->stream_.id == stream_.id;
    }

    forebay_pool pool_;
    forebay_device device_;
    forebay_stream stream_;
};
#endif

/* An allocator in the order of one stream: for the temporary memory of CUB and Thrust, thrust::cuda::par(allocator),
 * and, with thrust::device_ptr<T> as its Pointer, for thrust::device_vector. It does not touch the memory. */
template <typename T = char, typename Pointer = T *>
class stream_allocator {
public:
    using value_type = T;
    using pointer = Pointer;
    using size_type = std::size_t;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;
    template <typename U>
    struct rebind {
        using other = stream_allocator<U, typename std::pointer_traits<Pointer>::template rebind<U>>;
    };

    explicit stream_allocator(const pool &of, const stream &on = stream()) noexcept
        : pool_(of.get()), stream_(on.get()) {}
    template <typename U, typename Other>
    stream_allocator(const stream_allocator<U, Other> &other) noexcept : pool_(other.pool_), stream_(other.stream_) {}

    pointer allocate(size_type count) {
        return pointer(static_cast<T *>(
            detail::allocate(pool_, static_cast<std::size_t>(detail::bytes_of<T>(count)), alignof(T), stream_)));
    }

    void deallocate(pointer block, size_type) noexcept {
        static_cast<void>(detail::give_back(pool_, address_of(block), stream_));
    }

    template <typename U, typename Other>
    bool operator==(const stream_allocator<U, Other> &other) const noexcept {
        return pool_.id == other.pool_.id && stream_.id == other.stream_.id;
    }
    template <typename U, typename Other>
    bool operator!=(const stream_allocator<U, Other> &other) const noexcept {
        return !(*this == other);
    }

private:
    template <typename U, typename Other>
    friend class stream_allocator;

    static void *address_of(T *block) noexcept { return block; }
    template <typename Fancy>
    static void *address_of(const Fancy &block) noexcept {
        return block.get();
    }

    forebay_pool pool_;
    forebay_stream stream_;
};

#ifdef FOREBAY_WITH_CUDA_MR
/* A resource of cuda::mr (tested with CCCL 3.5), for RMM and for CCCL's containers and algorithms. Copies share one
 * pool. The device adopts a stream when an allocation or deallocation first names it, until forget() or until the last
 * copy is destroyed: call forget() before you destroy a stream. */
class cuda_resource {
public:
    explicit cuda_resource(const pool &of) : state_(std::make_shared<state>(of.get(), of.device_handle())) {}
    /* Not defaulted: nvcc takes a defaulted one for a function of the device as well, and warns. */
    cuda_resource(const cuda_resource &other) noexcept : state_(other.state_) {}
    cuda_resource &operator=(const cuda_resource &) = default;

    void *allocate(cuda::stream_ref on, std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
        return detail::allocate(state_->pool, bytes, alignment, state_->adopted(on.get()));
    }

    void deallocate(cuda::stream_ref on, void *block, std::size_t,
                    std::size_t = alignof(std::max_align_t)) noexcept {
        try {
            static_cast<void>(detail::give_back(state_->pool, block, state_->adopted(on.get())));
        } catch (...) {
            /* A stream that could not be adopted: without it, the whole device is waited for. */
            static_cast<void>(forebay_free_synchronized(state_->pool, block));
        }
    }

    void *allocate_sync(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
        return detail::allocate_synchronized(state_->pool, state_->device, bytes, alignment, forebay_stream{0});
    }

    /* All work that uses the block is done, as cuda::mr demands. */
    void deallocate_sync(void *block, std::size_t, std::size_t = alignof(std::max_align_t)) noexcept {
        static_cast<void>(forebay_free(state_->pool, block, forebay_stream{0}));
    }

    /* Forgets a stream that is about to be destroyed. */
    void forget(cuda::stream_ref gone) {
        const std::lock_guard<std::mutex> lock(state_->mutex);
        state_->streams.erase(gone.get());
    }

    bool operator==(const cuda_resource &other) const noexcept { return state_->pool.id == other.state_->pool.id; }
    bool operator!=(const cuda_resource &other) const noexcept { return !(*this == other); }
    friend constexpr void get_property(const cuda_resource &, cuda::mr::device_accessible) noexcept {}

private:
    struct state {
        using owner = detail::owner<forebay_stream, forebay_stream_close>;

        state(forebay_pool of, forebay_device on) : pool(of), device(on) {}

        /* The handle of a stream, which is adopted the first time. */
        forebay_stream adopted(void *raw) {
            if (raw == nullptr) {
                return forebay_stream{0};
            }
            const std::lock_guard<std::mutex> lock(mutex);
            auto found = streams.find(raw);
            if (found == streams.end()) {
                owner owned(detail::result_of<forebay_stream>(forebay_stream_adopt, device, raw));
                found = streams.emplace(raw, std::move(owned)).first;
            }
            return found->second.get();
        }

        forebay_pool pool;
        forebay_device device;
        std::mutex mutex;
        std::unordered_map<void *, owner> streams;
    };

    std::shared_ptr<state> state_;
};
#endif

} // namespace forebay

#endif /* FOREBAY_HPP */
