// Package docpipeline is the real work of the demo: three platform services
// that turn documents into a searchable index.
//
//	extract ──▶ text and title ──▶ embed ──▶ vectors ──▶ index ──▶ result file
//
// Every service reads its directive's input_ref and answers with the file that
// it wrote. A directive may be delivered more than once, so each is idempotent:
// the same input gives the same file, which is put in place at once.
package docpipeline
