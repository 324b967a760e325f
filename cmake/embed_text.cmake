# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The aule authors
#
# cmake -DFROM=FILE -DTO=HEADER -DNAME=NAME -P embed_text.cmake: makes a C header of a text file:
# its bytes and a 0.

file(READ ${FROM} bytes HEX)
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${TO} "static const unsigned char ${NAME}[] = {\n${bytes}0};\n")
