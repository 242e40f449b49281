package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

//go:embed templates assets
var files embed.FS

// frame is the data of the templates: a page, its user, and the navigation around it.
type frame struct {
	*request

	View view
	Live bool
	Oob  bool // An out-of-band swap: the browser shows the page already.
	Nav  []navEntry
}

// navEntry is an entry of the navigation.
type navEntry struct {
	Title, Path string
	Here        bool
	// Count is shown beside the title, and Hot says that it needs an operator.
	Count string
	Hot   bool
}

// parseTemplates parses the templates. Each page's is a file of its own.
func parseTemplates(config *Config) (*template.Template, error) {
	now := config.Now
	t := template.New("")
	t.Funcs(template.FuncMap{
		"sentence": func(s diagnosis.Sentence) template.HTML { return sentence(now(), s) },
		"local":    localTime,
		"since":    func(at api.Time) template.HTML { return since(now(), at.Time) },
		"ago":      func(at api.Time) template.HTML { return said(now(), diagnosis.Ago, at.Time) },
		"clocks":   diagnosis.ClockChange,
		"fired":    fireClass,
		"scheduleat": func(tenant, name string) string {
			return "schedules/" + url.PathEscape(tenant) + "/" + url.PathEscape(name)
		},
		"clock":   func(at api.Time) template.HTML { return clock(now(), at.Time) },
		"until":   func(at api.Time) template.HTML { return until(now(), at.Time) },
		"in":      func(at api.Time) template.HTML { return said(now(), diagnosis.In, at.Time) },
		"limitof": func(service string) string { return api.LimitScope{Service: service}.ID() },
		"num":     diagnosis.Number, "counted": diagnosis.Counted, "pct": diagnosis.Percent,
		"dur":   func(s float64) string { return diagnosis.Duration(diagnosis.Seconds(s)) },
		"code":  func(text string) string { return diagnosis.Brief(text, diagnosis.BriefCode) },
		"short": diagnosis.ShortID, "state": stateClass, "json": pretty, "asset": assetURL, "link": link, "spark": sparklineOf,
		"url": func(a diagnosis.Action) string { return link(a.Page, a.Query...) },
		"add": func(a, b int) int { return a + b }, "duration": diagnosis.Duration,
		"operation": operationWords, "objectPage": objectPage, "waits": reasonsToWaitFor,
		"path": pathOf, "dict": dict, "rate": rate,
		"list": func(values ...string) []string { return values }, "selects": func(op api.Operation) string { return selects(&op) },
		"repeats":   func(op api.Operation) string { return repeats(&op) },
		"following": func(op api.Operation) string { return following(&op) },
		"value":     func(text json.RawMessage) string { return diagnosis.Brief(string(text), diagnosis.BriefMessage) },
		"results":   func(op api.Operation) string { return diagnosis.Results(&op) },
		"words": func(s any) string {
			return strings.NewReplacer("_", " ", ".", " ").Replace(strings.ToLower(fmt.Sprint(s)))
		},
		"waiters":     func(n int64) string { return diagnosis.Counted(int(n), "job waits", "jobs wait") },
		"cli":         diagnosis.CommandWith,
		"outcome":     outcomeClass,
		"environment": func() string { return config.Environment },
		"colour":      func() string { return config.Colour },
		"icon":        func() template.URL { return icon(config.Colour) },
		"share":       func(n, of int) float64 { return float64(n) / float64(max(of, 1)) },
		// view renders the template of a page.
		"view": func(f *frame) (template.HTML, error) {
			var out bytes.Buffer
			err := t.ExecuteTemplate(&out, f.View.Template, f)
			return template.HTML(out.String()), err //nolint:gosec // A template has escaped it.
		},
	})
	if _, err := t.ParseFS(files, "templates/*.html"); err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	return t, nil
}

// environmentColours are the colours of environments, as the icon has them; console.css has the same.
var environmentColours = map[string]string{
	"grey": "#5c6b7f", "red": "#b82525", "amber": "#8a5200", "green": "#17703f", "blue": "#2356ba", "violet": "#6b3fa0",
}

// icon returns the URL of the icon in the colour of the environment.
func icon(colour string) template.URL {
	fill, known := environmentColours[colour]
	if !known {
		return template.URL(assetURL("icon.svg")) //nolint:gosec // It is one of our own files.
	}
	svg, _ := files.ReadFile("assets/icon.svg")
	drawn := bytes.Replace(svg, []byte("#2a62d0"), []byte(fill), 1)
	return template.URL("data:image/svg+xml;base64," + base64.StdEncoding.EncodeToString(drawn)) //nolint:gosec // It is made here.
}

// since writes how long ago a time was, which script keeps up to date. The time itself is
// shown on hover.
func since(now, at time.Time) template.HTML {
	return timeTag("since", at, diagnosis.Duration(now.Sub(at)))
}

// until writes how long it is until a time, or "now".
func until(now, at time.Time) template.HTML {
	text := "now"
	if at.After(now) {
		text = diagnosis.Duration(at.Sub(now))
	}
	return timeTag("until", at, text)
}

// clock writes the time of day in UTC, with the date if it is not today's.
func clock(now, at time.Time) template.HTML {
	layout := "15:04:05.000"
	if at.UTC().Format(time.DateOnly) != now.UTC().Format(time.DateOnly) {
		layout = "2006-01-02 15:04:05"
	}
	return timeTag("", at, at.UTC().Format(layout))
}

// localTime returns a time as the value of a datetime-local input, in UTC.
func localTime(at api.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format("2006-01-02T15:04:05")
}

// sentence writes a sentence whose times script keeps up to date.
func sentence(now time.Time, s diagnosis.Sentence) template.HTML {
	var out strings.Builder
	for _, piece := range s {
		if piece.Form == 0 {
			out.WriteString(template.HTMLEscapeString(piece.Text))
			continue
		}
		out.WriteString(string(said(now, piece.Form, piece.At)))
	}
	return template.HTML(out.String()) //nolint:gosec // The texts are escaped.
}

// said writes a time of a sentence.
func said(now time.Time, form diagnosis.Form, at time.Time) template.HTML {
	left := at.Sub(now)
	switch {
	case form == diagnosis.For:
		return "for " + timeTag("since", at, diagnosis.Duration(-left))
	case form == diagnosis.Within && left > 0:
		return timeTag("within", at, "within "+diagnosis.Duration(left))
	case form != diagnosis.Ago && left <= 0:
		return timeTag("in", at, "now")
	case form == diagnosis.In:
		return timeTag("in", at, "in "+diagnosis.Duration(left))
	case left > 0:
		return timeTag("ago", at, "in "+diagnosis.Duration(left))
	case left > -time.Second:
		return timeTag("ago", at, "just now")
	default:
		return timeTag("ago", at, diagnosis.Duration(-left)+" ago")
	}
}

func timeTag(class string, at time.Time, text string) template.HTML {
	if at.IsZero() {
		return "–"
	}
	stamp := at.UTC().Format("2006-01-02T15:04:05.000Z")
	if class != "" { // Script keeps the text up to date.
		class = ` class="` + class + `"`
	}
	tag := fmt.Sprintf(`<time%s datetime=%q title=%q>%s</time>`, class, stamp, stamp, text)
	return template.HTML(tag) //nolint:gosec // No part of it comes from outside.
}

// stateClass returns the style of a state. Each colour means the same on all pages and
// pictures: bad (red) needs a person, warn (amber) is held on purpose, run (blue) moves, ok
// (green) ended well, and idle (grey) waits or ended otherwise.
func stateClass(state any) string {
	switch fmt.Sprint(state) {
	case "FAILED_FINAL", "EXHAUSTED", "REJECTED", "REFUSED", "GONE", "open", "failed", "denied", "blocked":
		return "bad"
	case "QUEUED", "PAUSED", "PAUSING":
		return "warn"
	case "IN_PROGRESS", "RUNNING", "RAMPING", "CANCELLING", "half-open", "running", "claimed", "moving":
		return "run"
	case "SUCCEEDED", "DELIVERED", "DONE", "SENT", "done", "completed", "applied", "repeated":
		return "ok"
	default:
		return "idle"
	}
}

// fireClass returns the style of what became of an occurrence.
func fireClass(outcome api.FireOutcome) string {
	var cell calendarCell
	count(&cell, outcome)
	return cell.Class()
}

// outcomeClass returns the style of a worker's attempt.
func outcomeClass(outcome api.WorkerAttemptOutcome) string {
	switch outcome {
	case api.WorkerAttemptOutcomeSucceeded:
		return "ok"
	case api.WorkerAttemptOutcomeFailed, api.WorkerAttemptOutcomeLost:
		return "bad"
	default:
		return "idle"
	}
}

// pretty indents JSON.
func pretty(text json.RawMessage) string {
	var out bytes.Buffer
	if json.Indent(&out, text, "", "  ") != nil {
		return string(text)
	}
	return out.String()
}

// link returns the URL of a page of the console with these query parameters, without those
// that are empty.
func link(to string, pairs ...any) string {
	query := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if value := fmt.Sprint(pairs[i+1]); value != "" {
			query.Add(fmt.Sprint(pairs[i]), value)
		}
	}
	if len(query) == 0 {
		return Path + to
	}
	return Path + to + "?" + query.Encode()
}

// dict returns a map of names and values, as the data of a template.
func dict(pairs ...any) map[string]any {
	values := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		values[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return values
}

// assetTags are the versions of the assets: digests of their content.
var assetTags = sync.OnceValue(func() map[string]string {
	tags := map[string]string{}
	_ = fs.WalkDir(files, "assets", func(name string, entry fs.DirEntry, err error) error { // Embedded files do not fail.
		if err == nil && !entry.IsDir() {
			data, _ := files.ReadFile(name)
			sum := sha256.Sum256(data)
			tags[name] = base64.RawURLEncoding.EncodeToString(sum[:9])
		}
		return err
	})
	return tags
})

// assetURL returns the URL of an asset, which changes with its content.
func assetURL(name string) string {
	return Path + "assets/" + name + "?v=" + assetTags()["assets/"+name]
}

// serveAsset serves a script or a style.
func serveAsset(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, Path)
	tag, known := assetTags()[name]
	if !known {
		http.NotFound(w, r)
		return
	}
	data, _ := files.ReadFile(name)
	w.Header().Set("Cache-Control", "no-cache")
	if r.URL.Query().Get("v") == tag {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	w.Header().Set("ETag", `"`+tag+`"`)
	http.ServeContent(w, r, path.Base(name), time.Time{}, bytes.NewReader(data))
}
