package limits

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

// TestGate_OperatorBeforeTheWrite: an operator may store a closure of the scope before the one of
// this process is written.
func TestGate_OperatorBeforeTheWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(memstore.New(memstore.Options{}), "queue", nil)
		gate, err := NewGate(t.Context(), Config{Service: s})
		if err != nil {
			t.Fatal(err)
		}
		now := tablestore.Now()
		gate.Close(Closure{Scope: ocr, Until: now.Add(time.Minute)}, now)
		c := gate.closures[ocr]
		fresh, answered := c.unwritten, c.answered
		stored, err := s.Close(t.Context(), Closure{Scope: ocr, Until: now.Add(time.Hour)}, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		gate.Apply(stored)
		gate.write(t.Context(), ocr, c, fresh, answered)
		if by := gate.Blocks("ocr", "OCR", "a"); by == nil || by.Until.Sub(now) != time.Hour {
			t.Errorf("blocked by %+v, want for an hour", by)
		}
	})
}
