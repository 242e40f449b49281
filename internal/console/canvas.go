package console

import (
	"fmt"
	"math"
	"strings"
)

// The levels of the box in which the shown job is, beside those of trouble: it is under way, has
// succeeded, or ended otherwise.
const (
	levelHere  = "here"
	levelWell  = "ok"
	levelEnded = "idle"
)

// canvas is a diagram: boxes and the arrows between them.
type canvas struct {
	Width, Height int
	Edges         []flowEdge
	Nodes         []flowNode
	Labels        []flowLabel
}

// flowNode is a box with its figures and the page that a click on it opens.
type flowNode struct {
	X, Y, W, H             int
	Title, Big, Text, More string
	Level                  string // of its trouble, or of the shown job if that is there; empty for none
	URL                    string
	Below                  string // the figure at the arrow to the next box, where the boxes form a column
}

// flowEdge is an arrow between boxes. Its width grows with the rate.
type flowEdge struct {
	Path  string
	Tip   string // the arrowhead; empty for none
	Width float64
	Class string // hot if something moves, else the level of what keeps it; "retry" is added on the way of retries
}

// flowLabel is a text beside an arrow.
type flowLabel struct {
	X, Y int
	Text string
	Loop bool // The arrow leads back; a column of boxes does not show it.
}

// The dimensions of the canvas. It has two rows of five columns, the first from left to
// right and the second back, so that next steps and retries go up between the rows.
const (
	flowTop      = 20
	flowBox      = 100 // the height of most boxes
	flowWide     = 170
	flowColumn   = 204  // from one column to the next
	flowBand     = 140  // the top of the box of waiting retries, between the rows
	flowSecond   = 220  // the top of the second row
	flowRow      = 72   // from one service to the next
	flowService  = 60   // the height of a service's box
	flowWidest   = 324  // the width of a service's box
	flowEnd      = 54   // the height of the box of an end
	flowEnds     = 78   // from one end to the next
	flowTurn     = 1176 // where the arrows turn to the second row
	flowHigh     = 320  // In a higher second row, this much of its top has the boxes in its middle.
	mostServices = 8    // If there are more, the quiet ones share a box.
	nameLength   = 26   // Longer names are shortened.
	thinEdge     = 1.2  // the width of an arrow on which nothing moves
	thickEdge    = 7
	edgeTip      = 7
)

// places are the boxes of the canvas, each with its rates.
type places struct {
	commands, checks, ledger, outbox, publish, ack, running, result, retries flowing

	services []flowing
	ends     []flowing
	next     float64 // results per second that lead to a next step
	onward   string  // the label of the arrow to the next step
	lanes    string  // the label above the services
}

// draw lays out the boxes and draws the arrows between them.
func (p *places) draw() canvas {
	height := max(len(p.services)*flowRow-(flowRow-flowService), len(p.ends)*flowEnds-(flowEnds-flowEnd))
	middle := flowSecond + min(height, flowHigh)/2
	c := canvas{Width: flowTurn + 14, Height: flowSecond + height + flowTop}
	x := func(column int) int { return 10 + column*flowColumn }
	at := func(of *flowing, column, y, w, h int) {
		of.X, of.Y, of.W, of.H = x(column), y, w, h
	}
	for i, of := range []*flowing{&p.commands, &p.checks, &p.ledger, &p.outbox, &p.publish} {
		at(of, i, flowTop, flowWide, flowBox)
	}
	p.publish.X += (flowWidest - flowWide) / 2
	at(&p.retries, 2, flowBand, flowWide, flowEnd)
	p.retries.X, p.retries.W = p.retries.X+76, flowWide+28
	for i := range p.services {
		at(&p.services[i], 4, max(flowSecond, middle-(len(p.services)*flowRow-(flowRow-flowService))/2)+i*flowRow, flowWidest, flowService)
	}
	for i, of := range []*flowing{&p.result, &p.running, &p.ack} {
		at(of, i+1, middle-flowBox/2, flowWide, flowBox)
	}
	for i := range p.ends {
		at(&p.ends[i], 0, middle-(len(p.ends)*flowEnds-(flowEnds-flowEnd))/2+i*flowEnds, flowWide, flowEnd)
	}
	for i, way := range [][2]*flowing{{&p.commands, &p.checks}, {&p.checks, &p.ledger}, {&p.ledger, &p.outbox}, {&p.outbox, &p.publish}} {
		level := ""
		if i > 1 { // What cannot be published waits here.
			level = p.outbox.Level
		}
		c.line(&way[0].flowNode, &way[1].flowNode, way[1].arrives, level)
	}
	c.turn(p)
	for i := range p.services {
		of := &p.services[i]
		c.line(&of.flowNode, &p.ack.flowNode, of.ends, "")
	}
	c.line(&p.ack.flowNode, &p.running.flowNode, p.running.arrives, "")
	c.line(&p.running.flowNode, &p.result.flowNode, p.result.arrives, "")
	for i := range p.ends {
		c.line(&p.result.flowNode, &p.ends[i].flowNode, p.ends[i].arrives, p.ends[i].Level)
	}
	c.loops(p)
	if len(p.services) > 0 {
		c.Labels = append(c.Labels, flowLabel{X: x(4), Y: p.services[0].Y - 10, Text: p.lanes})
	}
	for _, of := range []*flowing{&p.commands, &p.checks, &p.ledger, &p.outbox, &p.publish} {
		c.Nodes = append(c.Nodes, of.flowNode)
	}
	for i := range p.services {
		c.Nodes = append(c.Nodes, p.services[i].flowNode)
	}
	for _, of := range []*flowing{&p.ack, &p.running, &p.result, &p.retries} {
		c.Nodes = append(c.Nodes, of.flowNode)
	}
	for i := range p.ends {
		c.Nodes = append(c.Nodes, p.ends[i].flowNode)
	}
	return c
}

// loops draws the arrows from RESULT back up: to the next step, and through the waiting
// retries to the next attempt.
func (c *canvas) loops(p *places) {
	result, retries := &p.result.flowNode, &p.retries.flowNode
	up, turn, into := result.X+flowWide/2-20, flowTop+flowBox+14, p.ledger.X+24
	c.way(fmt.Sprintf("M%d %dV%dH%dV%d", up, result.Y, turn, into, flowTop+flowBox+edgeTip), tip(into, flowTop+flowBox, 0, -1),
		p.next, "", "")
	c.Labels = append(c.Labels, flowLabel{X: up + 12, Y: turn + 16, Text: p.onward, Loop: true})
	level, y := retries.Level, retries.Y+retries.H/2
	c.way(fmt.Sprintf("M%d %dV%dH%d", up+40, result.Y, y, retries.X-edgeTip), tip(retries.X, y, 1, 0), p.retries.arrives, level, "retry")
	again := p.outbox.X + flowWide/2
	c.way(fmt.Sprintf("M%d %dH%dV%d", retries.X+retries.W, y, again, flowTop+flowBox+edgeTip), tip(again, flowTop+flowBox, 0, -1),
		p.retries.ends, level, "retry")
}

// line draws an arrow between boxes that are beside each other.
func (c *canvas) line(from, to *flowNode, perSecond float64, level string) {
	x, y, toX, toY, dx := from.X+from.W, from.Y+from.H/2, to.X, to.Y+to.H/2, 1
	if to.X < from.X {
		x, toX, dx = from.X, to.X+to.W, -1
	}
	end := toX - dx*edgeTip
	path := fmt.Sprintf("M%d %dH%d", x, y, end)
	if y != toY {
		middle := (x + end) / 2
		path = fmt.Sprintf("M%d %dC%d %d %d %d %d %d", x, y, middle, y, middle, toY, end, toY)
	}
	c.way(path, tip(toX, toY, dx, 0), perSecond, level, "")
}

// turn draws the arrow from the first row to the services in the second.
func (c *canvas) turn(p *places) {
	if len(p.services) == 0 {
		return
	}
	from, last := &p.publish.flowNode, &p.services[len(p.services)-1]
	path := fmt.Sprintf("M%d %dH%dV%d", from.X+from.W, from.Y+from.H/2, flowTurn, last.Y+last.H/2)
	c.way(path, "", p.publish.arrives, "", "")
	for i := range p.services {
		of := &p.services[i]
		x, y := of.X+of.W, of.Y+of.H/2
		c.way(fmt.Sprintf("M%d %dH%d", flowTurn, y, x+edgeTip), tip(x, y, -1, 0), of.arrives, of.Level, "")
	}
}

// way adds an arrow with that rate. A head that is empty is not drawn.
func (c *canvas) way(path, head string, perSecond float64, level, kind string) {
	if perSecond > 0 {
		level = "hot"
	}
	class := strings.TrimSpace(kind + " " + level)
	c.Edges = append(c.Edges, flowEdge{Path: path, Tip: head, Width: edgeWidth(perSecond), Class: class})
}

// tip returns the head of an arrow that ends at x, y with the direction dx, dy.
func tip(x, y, dx, dy int) string {
	backX, backY := x-dx*(edgeTip+1), y-dy*(edgeTip+1)
	return fmt.Sprintf("M%d %dL%d %dL%d %dZ", x, y, backX-dy*5, backY-dx*5, backX+dy*5, backY+dx*5)
}

// edgeWidth returns the width of an arrow, which grows with the logarithm of the rate.
func edgeWidth(perSecond float64) float64 {
	return math.Round(10*min(thinEdge+1.6*math.Log10(1+10*max(perSecond, 0)), thickEdge)) / 10
}
