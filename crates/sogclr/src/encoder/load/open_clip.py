def trunk():
    import open_clip

    return open_clip.model._build_vision_tower(OUTPUT, VISION, quick_gelu=True)
