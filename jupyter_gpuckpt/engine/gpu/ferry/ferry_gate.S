/* The gate of gpu-ferry.so: one entry for every function of the CUDA driver that the program has looked up.
 *
 * An entry counts its caller in, waits while the gate is closed, calls the driver's function with the same arguments, and counts the
 * caller out. So ferry.c can close the gate and know when no thread is inside the driver. The functions have up to 13 arguments
 * (six in registers): twelve words of the caller's stack are passed on, whatever the function takes. These words can always be read,
 * because above the arguments of a call lie other frames, the thread's control block, or the environment.
 */

#define PASSED_WORDS 12
/* As FERRY_ENTRIES in ferry.c. */
#define ENTRIES 4096
#define ENTRY_BYTES 16

    .text

/* void *dlsym(void *handle, const char *name): for all other names this jumps to libc's dlsym instead of calling it, because
 * dlsym(RTLD_NEXT, ...) looks at its return address. */
    .globl dlsym
    .type dlsym, @function
dlsym:
    .cfi_startproc
    testq %rsi, %rsi
    je 1f
    cmpw $0x7563, (%rsi)                /* "cu" */
    je ferry_dlsym
1:  movq ferry_real_dlsym(%rip), %rax
    testq %rax, %rax
    je 2f
    jmp *%rax
2:  pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    call ferry_find_dlsym
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    jmp *%rax
    .cfi_endproc
    .size dlsym, . - dlsym

/* On entry: the entry's number, and above it the return address and the caller's arguments on the stack. */
    .globl ferry_gate
    .hidden ferry_gate
    .type ferry_gate, @function
ferry_gate:
gate:
    .cfi_startproc
    .cfi_def_cfa_offset 16
    pushq %rbp
    .cfi_def_cfa_offset 24
    .cfi_offset %rbp, -24
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    lock incq ferry_inside(%rip)
    cmpl $0, ferry_closed(%rip)
    jne 2f
    movq 8(%rbp), %r11
    leaq ferry_functions(%rip), %r10
    cmpq $0, (%r10, %r11, 8)
    je 2f
1:  subq $(PASSED_WORDS * 8 + 8), %rsp
    .set word, 0
    .rept PASSED_WORDS / 2
    movups (24 + word * 8)(%rbp), %xmm8
    movups %xmm8, (word * 8)(%rsp)
    .set word, word + 2
    .endr
    movq 8(%rbp), %r11
    leaq ferry_functions(%rip), %r10
    call *(%r10, %r11, 8)
    lock decq ferry_inside(%rip)
    movq %rbp, %rsp
    popq %rbp
    .cfi_remember_state
    .cfi_def_cfa %rsp, 16
    .cfi_restore %rbp
    addq $8, %rsp
    .cfi_def_cfa_offset 8
    ret
    .cfi_restore_state
2:  subq $200, %rsp                     /* 8 registers for numbers, 8 for floats, and 8 bytes for the alignment */
    movq %rdi, (%rsp)
    movq %rsi, 8(%rsp)
    movq %rdx, 16(%rsp)
    movq %rcx, 24(%rsp)
    movq %r8, 32(%rsp)
    movq %r9, 40(%rsp)
    movq %rax, 48(%rsp)
    movups %xmm0, 64(%rsp)
    movups %xmm1, 80(%rsp)
    movups %xmm2, 96(%rsp)
    movups %xmm3, 112(%rsp)
    movups %xmm4, 128(%rsp)
    movups %xmm5, 144(%rsp)
    movups %xmm6, 160(%rsp)
    movups %xmm7, 176(%rsp)
    movq 8(%rbp), %rdi
    call ferry_prepare
    movq (%rsp), %rdi
    movq 8(%rsp), %rsi
    movq 16(%rsp), %rdx
    movq 24(%rsp), %rcx
    movq 32(%rsp), %r8
    movq 40(%rsp), %r9
    movq 48(%rsp), %rax
    movups 64(%rsp), %xmm0
    movups 80(%rsp), %xmm1
    movups 96(%rsp), %xmm2
    movups 112(%rsp), %xmm3
    movups 128(%rsp), %xmm4
    movups 144(%rsp), %xmm5
    movups 160(%rsp), %xmm6
    movups 176(%rsp), %xmm7
    addq $200, %rsp
    jmp 1b
    .cfi_endproc
    .size ferry_gate, . - ferry_gate

    .globl ferry_entries
    .hidden ferry_entries
    .p2align 4
ferry_entries:
    .cfi_startproc
    .set number, 0
    .rept ENTRIES
    .p2align 4
    .byte 0x68                          /* pushq $number, always with four bytes */
    .long number
    .cfi_def_cfa_offset 16
    .byte 0xe9                          /* jmp gate, always with four bytes */
    .long gate - . - 4
    .cfi_def_cfa_offset 8
    .set number, number + 1
    .endr
    .cfi_endproc

/* The functions by their names, for libraries that are linked with the driver. The first numbers are theirs. */
#define NAME(symbol) \
    .globl symbol; .type symbol, @function; .p2align 4; \
    symbol: .byte 0x68; .long number; .byte 0xe9; .long gate - . - 4; \
    .size symbol, . - symbol; .set number, number + 1;

    .globl ferry_named_entries
    .hidden ferry_named_entries
    .set number, 0
    .p2align 4
ferry_named_entries:
#include "ferry_names.h"

    .section .note.GNU-stack, "", @progbits
