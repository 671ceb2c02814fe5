#!/bin/sh
# Stands in front of a compile and adds what makes its object file depend on the sources alone, not on where they lie,
# when it runs or under which process id, and the include folders that nvcc is to search first. Anything that is not a
# compile to an object file passes unchanged.
#
#   stable-compile.sh [LAUNCHER…] COMPILER ARGUMENT…
#
# It is a shell script because one stands in front of every compile and must start in about a millisecond. The
# variables are made by sm120_wheels.wheel.reproducible, which explains each option; the flags are one a line.
compiler= temporary=-objtemp apart=
for word in "$@"; do
    case $word in -*) break ;; esac
    case ${word##*/} in
        # sccache runs nvcc's steps itself under stable names, and loses the object where nvcc would use -objtemp
        sccache) temporary= apart=-no-integrated-cpp ;;
        nvcc) compiler=nvcc ;;
        cc | c++ | gcc | g++ | gcc-[0-9]* | g++-[0-9]* | *-gcc | *-g++ | clang | clang++ | clang-[0-9]* | clang++-[0-9]*)
            compiler=host ;;
    esac
done
object= compiles= next_is_object= seeded=
for word in "$@"; do
    if [ "$next_is_object" ]; then
        object=$word next_is_object=
        continue
    fi
    case $word in
        -o) next_is_object=1 ;;
        -c | -dc | -dw | --compile | --device-c | --device-w) compiles=1 ;;
        -frandom-seed* | --frandom-seed*) seeded=1 ;;
    esac
done
if [ -z "$compiler" ] || [ -z "$compiles" ] || [ -z "$object" ]; then
    exec "$@"
fi
name=${object#"$SM120_STABLE_BUILD_ROOT"/}
case $name in
    # CMake names the object of a source that lies outside of the project after the source's whole path
    *"$SM120_STABLE_IN_NAMES"/*)
        name=${name%%"$SM120_STABLE_IN_NAMES"/*}/src/${name#*"$SM120_STABLE_IN_NAMES"/}
        ;;
esac
set -f
IFS='
'
if [ "$compiler" = nvcc ]; then
    # a project's own seed stays: nvcc warns about a second one, and a project may make warnings errors
    [ "$seeded" ] || set -- "$@" "$SM120_STABLE_NVCC_SEED=$name"
    # shellcheck disable=SC2086 - flags a line are meant to be split, an empty one to vanish
    if [ "$SM120_STABLE_NVCC_FIRST" ]; then
        # include folders are searched in their order: these go right behind the compiler's name
        left=$# placed=
        while [ "$left" -gt 0 ]; do
            word=$1 left=$((left - 1))
            shift
            set -- "$@" "$word"
            if [ -z "$placed" ] && [ "${word##*/}" = nvcc ]; then
                # shellcheck disable=SC2086
                set -- "$@" $SM120_STABLE_NVCC_FIRST
                placed=1
            fi
        done
    fi
    exec "$@" $SM120_STABLE_NVCC_FLAGS ${apart:+"-Xcompiler=$apart"} $temporary -Xcudafe "--orig_src_path_name=$name"
fi
[ "$seeded" ] || set -- "$@" "-frandom-seed=$name"
# shellcheck disable=SC2086
exec "$@" $SM120_STABLE_HOST_FLAGS $apart
