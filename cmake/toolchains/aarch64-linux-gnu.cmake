# 64-bit Arm from Debian's cross compiler; programs run under user-mode emulation. Packages: g++-aarch64-linux-gnu, qemu-user.
#
# Debian's compiler also searches /usr/include, so header-only libraries are the host's; libraries with code have to be built.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
# "max": every extension that the emulator knows, the dot product among them.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu max)
