package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/term"
)

// progress shows the progress of a run: on a terminal in one line, which it rewrites,
// elsewhere in a new line every two seconds.
type progress struct {
	out      io.Writer
	terminal bool
	counted  atomic.Int64
}

// newProgress returns a progress that writes to out, which may be a terminal.
func newProgress(out io.Writer) *progress {
	file, ok := out.(*os.File)
	return &progress{out: out, terminal: ok && term.IsTerminal(int(file.Fd()))}
}

// count counts one job or request.
func (p *progress) count() { p.counted.Add(1) }

// follow shows the progress of a run until stop is called or the context ends. unit names
// what is counted. The window is zero if the end of the run is not known.
func (p *progress) follow(ctx context.Context, name, unit string, window window) (stop func()) {
	p.counted.Store(0)
	ctx, cancel := context.WithCancel(ctx)
	var writing sync.WaitGroup
	writing.Go(func() { p.write(ctx, name, unit, window) })
	return func() {
		cancel()
		writing.Wait()
	}
}

// write writes a line at each tick.
func (p *progress) write(ctx context.Context, name, unit string, window window) {
	interval := 2 * time.Second
	if p.terminal {
		interval = 250 * time.Millisecond
		defer p.print(clearLine)
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var before int64
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			counted := p.counted.Load()
			rate := float64(counted-before) / now.Sub(last).Seconds()
			before, last = counted, now
			p.line(fmt.Sprintf("%s: %s, %d %s, %.0f a second", name, phase(window, now), counted, unit, rate))
		}
	}
}

// line writes one line.
func (p *progress) line(text string) {
	if p.terminal {
		p.print(clearLine + text)
		return
	}
	p.print(text + "\n")
}

// clearLine clears a terminal's current line.
const clearLine = "\r\x1b[K"

// print writes a text and ignores errors: the run does not depend on its progress.
func (p *progress) print(text string) { _, _ = io.WriteString(p.out, text) }

// phase describes the phase of the run at the time.
func phase(window window, now time.Time) string {
	switch {
	case window.end.IsZero():
		return "in progress"
	case now.Before(window.start):
		return "warming up"
	case now.Before(window.end):
		return fmt.Sprintf("%s of %s", now.Sub(window.start).Round(time.Second), window.end.Sub(window.start))
	}
	return "waiting for the last"
}
