def trunk():
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=IMAGE, patch_size=PATCH, in_chans=CHANNELS, num_classes=0, global_pool=POOL,
        embed_dim=WIDTH, depth=DEPTH, num_heads=HEADS,
    )
