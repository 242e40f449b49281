package fakeservicebus

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// batchFormat is the message format of a transfer of several messages, each encoded
// in a data section of its own.
const batchFormat = 0x80013700

// content is a message as it was sent. The copies of a message share it, and it never
// changes.
type content struct {
	id          string
	timeToLive  time.Duration // 0 means forever
	annotations pairs
	properties  []byte // the encoded section
	application pairs
	body        []byte // the encoded sections of body and footer
	size        int    // of the encoded message, in bytes
}

// errNoBody is returned for a message without any body section.
var errNoBody = errors.New("a message has no body")

// section is one section of a message.
type section struct {
	code  uint64
	value any
	raw   []byte
}

// sections decodes the sections of a message.
func sections(data []byte) ([]section, error) {
	d := decoder{data: data}
	var found []section
	for len(d.rest()) > 0 {
		start := d.at
		v, err := d.value()
		if err != nil {
			return nil, fmt.Errorf("decode a message: %w", err)
		}
		whole, ok := v.(described)
		if !ok {
			return nil, fmt.Errorf("decode a message: a %T is no section", v)
		}
		code, ok := whole.descriptor.(uint64)
		if !ok {
			return nil, fmt.Errorf("decode a message: unknown section %v", whole.descriptor)
		}
		found = append(found, section{code, whole.value, data[start:d.at]})
	}
	return found, nil
}

// parseMessage decodes one message. The result shares memory with the data.
func parseMessage(data []byte) (*content, error) {
	found, err := sections(data)
	if err != nil {
		return nil, err
	}
	m := &content{size: len(data)}
	for _, s := range found {
		switch s.code {
		case sectionHeader:
			list, _ := s.value.([]any)
			m.timeToLive = time.Duration(fields(list).number(2, 0)) * time.Millisecond
		case sectionMessageAnnotations:
			m.annotations, _ = s.value.(pairs)
		case sectionProperties:
			list, _ := s.value.([]any)
			m.id, m.properties = idText(fields(list).at(0)), s.raw
		case sectionApplication:
			m.application, _ = s.value.(pairs)
		case sectionData, sectionSequence, sectionValue, sectionFooter:
			m.body = append(m.body, s.raw...)
		}
	}
	if len(m.body) == 0 {
		return nil, errNoBody
	}
	return m, nil
}

// parseBatch decodes the messages of a batch. It reads only the data sections: the
// envelope merely repeats the properties of the first message.
func parseBatch(data []byte) ([]*content, error) {
	found, err := sections(data)
	if err != nil {
		return nil, err
	}
	var messages []*content
	for _, s := range found {
		encoded, ok := s.value.([]byte)
		if s.code != sectionData || !ok {
			continue
		}
		m, err := parseMessage(encoded)
		if err != nil {
			return nil, fmt.Errorf("message %d of a batch: %w", len(messages)+1, err)
		}
		messages = append(messages, m)
	}
	return messages, nil
}

// idText formats a message id, which may have one of four types.
func idText(id any) string {
	switch id := id.(type) {
	case string:
		return id
	case uint64:
		return strconv.FormatUint(id, 10)
	case uuid:
		return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
	case []byte:
		return hex.EncodeToString(id)
	default:
		return ""
	}
}

// modified returns the content with the given application properties set; the others
// stay.
func (m *content) modified(properties pairs) *content {
	if len(properties) == 0 {
		return m
	}
	changed := *m
	changed.application = slices.Clone(m.application)
	for _, p := range properties {
		changed.application = changed.application.with(textOf(p.key), p.value)
	}
	return &changed
}

// encode encodes a copy for a receiver. A zero time means that the copy is not
// locked.
func (c *stored) encode(lockedUntil time.Time) []byte {
	var timeToLive any
	if c.content.timeToLive > 0 {
		timeToLive = uint32(c.content.timeToLive.Milliseconds())
	}
	b := appendDescribed(nil, sectionHeader, []any{true, nil, timeToLive, nil, c.failures})
	annotations := c.content.annotations.
		with(symbol("x-opt-sequence-number"), c.sequence).
		with(symbol("x-opt-enqueue-sequence-number"), c.sequence).
		with(symbol("x-opt-enqueued-time"), c.enqueued).
		with(symbol("x-opt-message-state"), int32(0))
	if !lockedUntil.IsZero() {
		annotations = annotations.with(symbol("x-opt-locked-until"), lockedUntil)
	}
	if c.deadLetteredFrom != "" {
		annotations = annotations.with(symbol("x-opt-deadletter-source"), c.deadLetteredFrom)
	}
	b = appendDescribed(b, sectionMessageAnnotations, annotations)
	b = append(b, c.content.properties...)
	if len(c.content.application) > 0 {
		b = appendDescribed(b, sectionApplication, c.content.application)
	}
	return append(b, c.content.body...)
}
