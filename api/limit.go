package api

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// The windows of a limit.
const (
	MinWindow = time.Second
	MaxWindow = 24 * time.Hour
)

// Check returns what is wrong with the request by itself.
func (c *StartLimitRequest) Check() []apierror.Violation {
	var v violations
	if c.Starts == nil && c.MaxRunning == 0 {
		v.add("", "must hold starts, max_running or both")
	}
	if c.Starts != nil {
		c.Starts.check(&v)
	}
	if c.MaxRunning != 0 {
		v.atLeast("/max_running", float64(c.MaxRunning), 1)
	}
	if c.MaxRunning > MaxRunning {
		v.add("/max_running", fmt.Sprintf("must be at most %d", MaxRunning))
	}
	v.reason(c.Reason, 1)
	return v
}

// check adds what is wrong with the starts of a request.
func (s *Starts) check(v *violations) {
	v.atLeast("/starts/count", float64(s.Count), 1)
	if s.Count > MaxStarts {
		v.add("/starts/count", fmt.Sprintf("must be at most %d", MaxStarts))
	}
	if window, err := time.ParseDuration(s.Window); err != nil {
		v.add("/starts/window", "must be a duration such as 1s, 1m or 24h")
	} else if window < MinWindow || window > MaxWindow {
		v.add("/starts/window", "must be from 1s to 24h")
	}
}

// Check returns what is wrong with the request by itself.
func (c *CloseRequest) Check() []apierror.Violation {
	var v violations
	if c.Until.IsZero() == (c.ForSeconds == nil) {
		v.add("", "must hold exactly one of for_seconds and until")
	}
	if c.ForSeconds != nil {
		v.number("/for_seconds", *c.ForSeconds, MaxPause)
		if s := *c.ForSeconds; s >= 0 && s < 0.001 {
			v.add("/for_seconds", "must be at least 0.001")
		}
	}
	v.reason(c.Reason, 1)
	return v
}

// LimitScope is what a limit or a closure is of.
type LimitScope = statemachine.StartScope

// LimitTenant returns the tenant that the id of a limit names, empty for all.
func LimitTenant(id LimitID) string {
	scope, _ := statemachine.ParseStartScope(id)
	return scope.TenantID
}

// Limited reports whether the scope has a limit.
func (s *StartLimit) Limited() bool { return s.Starts != nil || s.MaxRunning > 0 }

// Words returns the limit in words: "600/1m, 40 at once"; empty without one.
func (s *StartLimit) Words() string { return limitWords(s.Starts, s.MaxRunning) }

// Words returns the limit in words, as [StartLimit.Words] does.
func (c *StartLimitRequest) Words() string { return limitWords(c.Starts, c.MaxRunning) }

func limitWords(starts *Starts, running int32) string {
	var parts []string
	if starts != nil {
		parts = append(parts, starts.String())
	}
	if running > 0 {
		parts = append(parts, strconv.Itoa(int(running))+" at once")
	}
	return strings.Join(parts, ", ")
}

// Span returns the length of the window; 0 if there are no starts or it is not a duration.
func (s *Starts) Span() time.Duration {
	if s == nil {
		return 0
	}
	span, err := time.ParseDuration(s.Window)
	if err != nil {
		return 0
	}
	return span
}

// NewStarts returns the starts of a window, whose text has no part that is 0.
func NewStarts(count int, window time.Duration) Starts {
	return Starts{Count: int32(count), Window: SpanText(window)}
}

// ParseStarts reads starts as a command line has them: 600/1m.
func ParseStarts(text string) (Starts, error) {
	number, window, found := strings.Cut(text, "/")
	count, err := strconv.ParseInt(number, 10, 32)
	span, bad := time.ParseDuration(window)
	if !found || err != nil || bad != nil || count < 1 || count > MaxStarts || span < MinWindow || span > MaxWindow {
		return Starts{}, fmt.Errorf("%q must be a number of starts and a window of 1s to 24h, such as 600/1m", text)
	}
	return NewStarts(int(count), span), nil
}

// String returns the starts as [ParseStarts] reads them.
func (s *Starts) String() string { return strconv.Itoa(int(s.Count)) + "/" + s.Window }
