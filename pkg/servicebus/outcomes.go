package servicebus

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"math"
)

// outcomeReader reads AMQP frames and rewrites one kind: the disposition that tells
// the outcome of a send. The SDK misreads some outcomes and does not expose them:
//
//	accepted                    success: stays as it is
//	released, modified          would pass for success: becomes rejected, to be retried
//	rejected, condition         stays as it is
//	  known to the SDK
//	rejected, condition         would pass for a broken connection: becomes rejected
//	  unknown to the SDK        as not allowed, with the condition as its description
//
// It passes everything else on unchanged. It serves one reader at a time.
//
// Source: AMQP 1.0, 2.3 (framing), 2.7.6 (disposition), 3.4 (delivery states).
type outcomeReader struct {
	in *bufio.Reader
	// pass is how many of the next bytes to pass on unchanged.
	pass int
	// changed is the rest of a frame that replaces the one read.
	changed []byte
}

// largestOutcome bounds the frames that are inspected: dispositions are smaller.
const largestOutcome = 1 << 14

// frameHead is the size of a frame's fixed head, and of a protocol header.
const frameHead = 8

// newOutcomeReader returns a reader of in.
func newOutcomeReader(in io.Reader) *outcomeReader {
	return &outcomeReader{in: bufio.NewReaderSize(in, 2*largestOutcome)}
}

// Read implements [io.Reader]. After an error such as a deadline's, the next call
// resumes at the same byte.
func (r *outcomeReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(r.changed) == 0 && r.pass == 0 {
		if err := r.frame(); err != nil {
			return 0, err
		}
	}
	if len(r.changed) > 0 {
		n := copy(p, r.changed)
		r.changed = r.changed[n:]
		return n, nil
	}
	n, err := r.in.Read(p[:min(len(p), r.pass)])
	r.pass -= n
	return n, err
}

// frame decides what to do with the next frame. It passes on truncated frames, and
// bytes that are no frame, for the SDK to reject.
func (r *outcomeReader) frame() error {
	head, err := r.in.Peek(frameHead)
	if errors.Is(err, io.EOF) && len(head) > 0 {
		r.pass = len(head)
		return nil
	}
	if err != nil {
		return err
	}
	size := int(binary.BigEndian.Uint32(head))
	switch {
	case string(head[:4]) == "AMQP":
		r.pass = frameHead
		return nil
	case size < frameHead:
		r.pass = math.MaxInt
		return nil
	case size > largestOutcome:
		r.pass = size
		return nil
	}
	frame, err := r.in.Peek(size)
	if errors.Is(err, io.EOF) {
		r.pass = len(frame)
		return nil
	}
	if err != nil {
		return err
	}
	if r.changed = plainOutcome(frame); r.changed == nil {
		r.pass = size
		return nil
	}
	_, err = r.in.Discard(size)
	return err
}
