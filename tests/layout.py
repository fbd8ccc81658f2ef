"""Whether a figure can be read."""


def assert_nothing_overlaps(figure):
    """Titles, legends and axis labels keep clear of each other, of the curves, and inside of the picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.canvas.draw()
    shown = [ax for ax in figure.axes if ax.get_visible()]
    titles = [] if figure._suptitle is None else [figure._suptitle]
    boxes = [("title", title.get_window_extent(renderer)) for title in titles]
    boxes += [("legend of the figure", legend.get_window_extent(renderer)) for legend in figure.legends]
    for ax in shown:
        boxes.append(("curves", ax.get_window_extent(renderer)))
        texts = [ax.xaxis.label, ax.yaxis.label, ax._left_title]
        for axis, limits in (
            (ax.xaxis, ax.get_xlim()),
            (ax.yaxis, ax.get_ylim()),
        ):  # ticks outside are not drawn
            ticks = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
            texts += [text for place, text in ticks if limits[0] <= place <= limits[1]]
        texts = [text for text in texts if text.get_text()]
        boxes += [(text.get_text(), text.get_window_extent(renderer)) for text in texts]
        if ax.get_legend() is not None:
            boxes.append(("legend", ax.get_legend().get_window_extent(renderer)))
    for i, (name, box) in enumerate(boxes):
        inside = min(box.x0, box.y0) >= 0 and box.x1 <= figure.bbox.x1 + 1 and box.y1 <= figure.bbox.y1 + 1
        assert inside, name
        for other, another in boxes[:i]:
            assert not box.padded(-3).overlaps(another.padded(-3)), (name, other)
