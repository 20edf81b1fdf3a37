// What of {fmt} is not a template of the caller's, compiled once: a file that sees only its declarations takes half the
// time of one that compiles it too. For the versions that cmake/FcclDependencies.cmake names.
#include <fmt/format-inl.h>

#include <locale>

FMT_BEGIN_NAMESPACE
namespace detail {

// What the headers leave to be instantiated.
template locale_ref::locale_ref(const std::locale&);
template std::locale locale_ref::get<std::locale>() const;
template dragonbox::decimal_fp<float> dragonbox::to_decimal<float>(float) noexcept;
template dragonbox::decimal_fp<double> dragonbox::to_decimal<double>(double) noexcept;
template thousands_sep_result<char> thousands_sep_impl<char>(locale_ref);
template char decimal_point_impl<char>(locale_ref);
template void buffer<char>::append<char>(const char*, const char*);
template void vformat_to<char>(buffer<char>&, basic_string_view<char>, basic_format_args<buffer_context<char>>,
                               locale_ref);

}  // namespace detail
FMT_END_NAMESPACE
