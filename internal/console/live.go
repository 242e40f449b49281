package console

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lucius-project/lucius/api"
)

const (
	eventStream = "text/event-stream"
	// liveInterval is how often a page with viewers is rendered again.
	liveInterval = time.Second
	// liveRarely is how often a page with a stream of changes is read even without a change:
	// the stream does not cover all that it shows. In between it is rendered from the same
	// responses, for the times that it shows, unless it is larger than largeView bytes.
	liveRarely = 5 * time.Second
	largeView  = 64 << 10
	// liveComment is how long a stream is silent at most.
	liveComment = 15 * time.Second
	// liveWrite is the write deadline of one rendering.
	liveWrite = 10 * time.Second
	// maxFeeds is how many live pages are rendered at a time, and maxCallerFeeds how many of
	// them for one caller.
	maxFeeds       = 256
	maxCallerFeeds = 64
)

// feeds are the live pages with viewers.
type feeds struct {
	mu   sync.Mutex
	open map[feedKey]*feed
}

type feedKey struct{ caller, token, url string }

// feed is a live page that is rendered once for all viewers. The lock of [feeds] guards it.
type feed struct {
	viewers int
	cancel  context.CancelFunc
	changed chan struct{} // Closed and replaced when latest changes.
	latest  *rendering
	still   bool // latest will not change.
	// stale is the time since which the page could not be rendered, empty if latest is
	// current.
	stale string
}

func newFeeds() *feeds { return &feeds{open: map[feedKey]*feed{}} }

// rendering is the content of a live page, by lines. bare[i] is lines[i] without the text of
// its times, which script keeps up to date by itself.
type rendering struct{ lines, bare []string }

// times matches the elements whose text script keeps up to date.
var times = regexp.MustCompile(`(<time [^>]*>)[^<]*`)

func newRendering(content []byte) *rendering {
	return &rendering{
		lines: strings.Split(string(content), "\n"),
		bare:  strings.Split(string(times.ReplaceAll(content, []byte("$1"))), "\n"),
	}
}

// since returns the difference from an earlier rendering, nil for none, as a JSON array: new lines are
// strings, and ranges [from, to) are lines to copy from the earlier one. console.js applies it.
func (r *rendering) since(before *rendering) []byte {
	at := map[string]int{}
	if before == nil {
		before = &rendering{}
	}
	for i, line := range before.bare {
		at[line] = i
	}
	parts, run := []any{}, &[2]int{}
	for i, line := range r.bare {
		from, known := at[line]
		switch follows := run[1]; {
		case follows > 0 && follows < len(before.bare) && before.bare[follows] == line:
			run[1]++
		case known:
			run = &[2]int{from, from + 1}
			parts = append(parts, run)
		default:
			run = &[2]int{}
			parts = append(parts, r.lines[i])
		}
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(parts) // Strings and numbers can be encoded.
	return out.Bytes()
}

// stream sends the page's content, then its changes, until the browser disconnects or the server drains.
func (c *Console) stream(w http.ResponseWriter, r *request, p *page) {
	key := feedKey{r.Who.Name, token(r.Request), r.URL.RequestURI()}
	f := c.join(key, r, p)
	if f == nil {
		http.Error(w, "Too many pages are live at a time. Close some of them, or reload this one.", http.StatusTooManyRequests)
		return
	}
	defer c.leave(key, f)
	w.Header().Set("Content-Type", eventStream)
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	var sent *rendering
	said := ""
	for {
		c.feeds.mu.Lock()
		latest, changed, still, stale := f.latest, f.changed, f.still, f.stale
		c.feeds.mu.Unlock()
		// A writer without a connection has no deadlines, and needs none.
		_ = control.SetWriteDeadline(time.Now().Add(liveWrite))
		var err error
		if latest == sent {
			_, err = w.Write([]byte(": waiting\n\n"))
		} else {
			_, err = fmt.Fprintf(w, "event: view\ndata: %s\n", latest.since(sent))
			sent = latest
		}
		if err == nil && stale != said {
			said = stale
			_, err = fmt.Fprintf(w, "event: stale\ndata: %s\n\n", stale)
		}
		if err == nil && still {
			_, err = w.Write([]byte("event: end\ndata:\n\n"))
		}
		if err != nil || control.Flush() != nil || still {
			return
		}
		_ = control.SetWriteDeadline(time.Time{}) // With HTTP/2 the deadline would end a silent stream.
		comment := time.NewTimer(liveComment)
		select {
		case <-changed:
		case <-comment.C:
		case <-c.config.Ended:
			comment.Stop()
			return
		case <-r.Context().Done():
			comment.Stop()
			return
		}
		comment.Stop()
	}
}

// join adds a viewer to the page's feed, which the first viewer starts. It returns nil if
// there are too many feeds.
func (c *Console) join(key feedKey, r *request, p *page) *feed {
	c.feeds.mu.Lock()
	defer c.feeds.mu.Unlock()
	f := c.feeds.open[key]
	if f == nil {
		ofCaller := 0
		for other := range c.feeds.open {
			if other.caller == key.caller {
				ofCaller++
			}
		}
		if ofCaller >= maxCallerFeeds || len(c.feeds.open) >= maxFeeds {
			return nil
		}
		// The feed ends with its last viewer, which need not be the first.
		ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
		f = &feed{cancel: cancel, changed: make(chan struct{})}
		c.feeds.open[key] = f
		go c.feed(ctx, f, r.Request.WithContext(ctx), p)
	}
	f.viewers++
	return f
}

// tell wakes the viewers. The caller holds the lock of [feeds].
func (f *feed) tell() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// leave removes a viewer. The last one ends the feed.
func (c *Console) leave(key feedKey, f *feed) {
	c.feeds.mu.Lock()
	defer c.feeds.mu.Unlock()
	if f.viewers--; f.viewers == 0 {
		f.cancel()
		delete(c.feeds.open, key)
	}
}

// feed renders the page until the context ends, and tells the viewers when it has changed.
func (c *Console) feed(ctx context.Context, f *feed, r *http.Request, p *page) {
	ticker := &feedTicker{Ticker: time.NewTicker(liveInterval)}
	defer ticker.Stop()
	changes := c.changes(r, p)
	fresh, own := true, newMemo()
	for {
		out, still, ok := c.renderLive(r, p, own, fresh)
		rendered := newRendering(out)
		c.feeds.mu.Lock()
		switch {
		case !ok && f.stale == "":
			f.stale = c.config.Now().UTC().Format(time.RFC3339)
			f.tell()
		case ok && (still || f.stale != "" || f.latest == nil || !slices.Equal(rendered.bare, f.latest.bare)):
			f.latest, f.still, f.stale = rendered, still, ""
			f.tell()
		}
		c.feeds.mu.Unlock()
		if still {
			return
		}
		var ended bool
		if fresh, ended = c.awaitRender(ctx, ticker, &changes, p.changes != nil, len(out) > largeView); ended {
			return
		}
		if ticker.due && changes == nil { // A refused subscription is tried again only when a read is due.
			changes = c.changes(r, p)
		}
	}
}

// awaitRender waits until the page is to be rendered again. It reports whether to read the
// page's data again, and whether the feed has ended. knows says that the page has a stream
// of changes: it is read after each change, and otherwise every [liveRarely]; if it is large,
// it is not rendered in between. A channel that is closed is set to nil.
func (c *Console) awaitRender(ctx context.Context, ticker *feedTicker, changes *<-chan struct{}, knows, large bool) (fresh, ended bool) {
	for {
		select {
		case <-ticker.C:
			ticker.idle += liveInterval
			ticker.due = !knows || ticker.idle >= liveRarely
			if fresh = ticker.due; !fresh && large {
				continue
			}
		case _, open := <-*changes:
			if fresh, ticker.due = true, false; !open {
				*changes = nil
			}
		case <-c.config.Ended:
			return false, true
		case <-ctx.Done():
			return false, true
		}
		if fresh {
			ticker.idle = 0
		}
		return fresh, false
	}
}

// feedTicker is the clock of a feed.
type feedTicker struct {
	*time.Ticker

	idle time.Duration // since the last read
	due  bool          // The last wait ended with a read that is due even without a change.
}

// changes returns a channel that receives a value after changes of the page and is closed
// when no more are sent, nil if the page has none.
func (c *Console) changes(r *http.Request, p *page) <-chan struct{} {
	if p.changes == nil {
		return nil
	}
	user, err := c.request(r)
	if err != nil {
		return nil
	}
	return p.changes(user)
}

// renderLive renders the content of the page, and reports with still that it will not change
// any more. ok is false if the page cannot be rendered now and the browser should keep what
// it has. own has the data that the feed has read, and fresh says to read it again. A user who may
// no longer see the page is told so, and the stream ends.
func (c *Console) renderLive(r *http.Request, p *page, own *memo, fresh bool) (content []byte, still, ok bool) {
	defer func() {
		if recovered := recover(); recovered != nil { // This goroutine has no handler that would recover it.
			c.config.Log.ErrorContext(r.Context(), "page of the console panicked", "path", r.URL.Path, "panic", recovered,
				"stack", string(debug.Stack()))
			content, still, ok = nil, false, false
		}
	}()
	f := &frame{Live: true, Oob: true, request: &request{Request: r, now: c.config.Now()}}
	user, err := c.request(r)
	if err == nil {
		user.live, user.fresh, user.own = true, fresh, own
		f.request = user
		f.View, err = p.show(user)
	}
	switch {
	case hasStatus(err, http.StatusUnauthorized):
		f.View = c.fault(r, &refusal{Status: http.StatusUnauthorized, Problem: api.Problem{
			Detail: "Your sign-in has ended. Reload the page to sign in again.",
		}})
		f.View.Still = true
	case hasStatus(err, http.StatusForbidden), isMissing(err):
		f.View = c.fault(r, err)
		f.View.Still = true
	case err != nil, f.View.Location != "":
		return nil, false, false
	}
	f.Nav = c.navigation(f)
	var out bytes.Buffer
	if err := c.templates.ExecuteTemplate(&out, "content", f); err != nil {
		c.config.Log.ErrorContext(r.Context(), "render a page of the console", "path", r.URL.Path, "error", err)
		return nil, false, false
	}
	return out.Bytes(), f.View.Still, true
}
