package statemachine

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Occurrence is the occurrence of a schedule for which a job was accepted. It never changes.
type Occurrence struct {
	ScheduleID string    // empty if the job is of no schedule
	Version    int       // of the schedule's definition
	For        time.Time // in milliseconds
}

// String returns the occurrence as it is stored, empty for the zero value.
func (o Occurrence) String() string {
	if o.ScheduleID == "" {
		return ""
	}
	return fmt.Sprintf("%s:%d:%d", o.ScheduleID, o.Version, o.For.UnixMilli())
}

// ParseOccurrence returns the occurrence of its [Occurrence.String].
func ParseOccurrence(text string) (Occurrence, error) {
	if text == "" {
		return Occurrence{}, nil
	}
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return Occurrence{}, fmt.Errorf("bad occurrence %q", text)
	}
	version, err := strconv.Atoi(parts[1])
	ms, err2 := strconv.ParseInt(parts[2], 10, 64)
	if err != nil || err2 != nil {
		return Occurrence{}, fmt.Errorf("bad occurrence %q", text)
	}
	return Occurrence{ScheduleID: parts[0], Version: version, For: time.UnixMilli(ms).UTC()}, nil
}
