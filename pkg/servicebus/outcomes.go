package servicebus

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"math"
)

// outcomeReader reads what a peer sends, frame by frame, and changes one kind of
// frame: the disposition that tells the outcome of what was sent. The SDK takes
// some outcomes for what they are not, and shows none:
//
//	accepted                    success, and stays as it is
//	released, modified          would pass for success: becomes rejected, to be tried again
//	rejected, as the SDK        stays as it is
//	  knows it
//	rejected, as it does not    would pass for a broken connection: becomes rejected
//	                            as not allowed, with the condition as its description
//
// Everything else passes as it came. It is used by one reader at a time.
//
// Source: AMQP 1.0, 2.3 (framing), 2.7.6 (disposition), 3.4 (delivery states).
type outcomeReader struct {
	in *bufio.Reader
	// pass is how many bytes are handed on as they come.
	pass int
	// changed is what is handed on instead of the frame that was read.
	changed []byte
}

// largestOutcome bounds the frames that are looked at: no disposition is as large.
const largestOutcome = 1 << 14

// frameHead is the size of a frame's fixed head, and of a protocol header.
const frameHead = 8

// newOutcomeReader returns a reader of what comes in.
func newOutcomeReader(in io.Reader) *outcomeReader {
	return &outcomeReader{in: bufio.NewReaderSize(in, 2*largestOutcome)}
}

// Read implements [io.Reader]. After an error such as a deadline's it goes on
// where it was.
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

// frame looks at the next frame, of which there is none at the end. One that is
// cut short, or no frame at all, is handed on: who reads it will see that.
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
