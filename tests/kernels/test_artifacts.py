"""What is read from compiled kernels, from texts as the compilers write them."""

from helpers.kernels import artifacts

PTX = """
.target sm_100a
	tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16 [%r1], %rd2, %rd3, %r4, [%r5], [%r6], %p1;
	tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16 [%r1], %rd2, %rd3, %r4, [%r5], [%r6], %p1;
	cvt.rn.satfinite.e2m1x2.f32 %rs1, %f1, %f2;
	add.f32 %f1, %f2, %f3;
"""

LOWERED = """
  llvm.func @other() {
    %30 = llvm.mlir.constant(7 : i64) : i64
  }
  llvm.func @launch() {
    %30 = llvm.mlir.constant(226304 : i64) : i64
    %142 = llvm.getelementptr %136[0, 2] : (!llvm.ptr) -> !llvm.ptr, !llvm.struct<(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32)>
    llvm.store %30, %142 : i64, !llvm.ptr
  }
"""


def test_telling_instructions_are_counted():
    found = artifacts.instructions([PTX, PTX])
    assert found == {"tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16": 4, "cvt.rn.satfinite.e2m1x2.f32": 2}


def test_shared_memory_is_that_of_the_largest_launch():
    assert artifacts.shared_memory([LOWERED, LOWERED.replace("226304", "1024")]) == 226304


def test_shared_memory_that_is_computed_at_launch_is_unknown():
    assert artifacts.shared_memory([LOWERED.replace("llvm.store %30", "llvm.store %arg7")]) is None
    assert artifacts.shared_memory([]) is None
