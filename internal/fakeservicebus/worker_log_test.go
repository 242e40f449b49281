package fakeservicebus_test

import (
	"bytes"
	"context"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	lucius "github.com/lucius-project/lucius/sdk/go"
	"github.com/lucius-project/lucius/sdk/go/servicebus"
)

// Its log has the lines that sdk/README.md lists for all SDKs.
func TestWorker_Talks(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	var log safeBuffer
	fails := func(context.Context, *lucius.Task) (any, error) {
		return nil, lucius.Final("NO_PAGES", "it has no pages")
	}
	stop := b.workOn("OCR", fails, func(cfg *servicebus.Config) { cfg.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	task := strings.Replace(directive, `"payload"`, `"step_type":"OCR","payload"`, 1)
	b.send(task)
	b.replied(2)
	b.until(func() bool { return b.Depth(directives) == 0 })
	b.Stop()
	b.until(func() bool { return strings.Contains(log.String(), "unreachable") })
	if err := b.Restart(); err != nil {
		t.Fatal(err)
	}
	b.send(strings.Replace(task, `"attempt_no":2`, `"attempt_no":3`, 1))
	b.replied(4)
	stop()
	varies := regexp.MustCompile(`time=\S+|duration=\S+|sb://[^ ;"]+|error="global-bus-p0: .*`)
	said := varies.ReplaceAllString(log.String(), "…")
	const want = `… level=INFO msg="worker started" services=ocr steps=OCR server=… parallel=4
… level=INFO msg="task ended" job_id=j step_id=s step_type=OCR attempt=2 … outcome=failed error="NO_PAGES: it has no pages"
… level=WARN msg="server unreachable" server=… …
… level=INFO msg="server reachable" server=… …
… level=INFO msg="task ended" job_id=j step_id=s step_type=OCR attempt=3 … outcome=failed error="NO_PAGES: it has no pages"
`
	if diff := cmp.Diff(want, said); diff != "" {
		t.Errorf("the log (-want +got):\n%s", diff)
	}
}

// safeBuffer is a buffer for several goroutines.
type safeBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
